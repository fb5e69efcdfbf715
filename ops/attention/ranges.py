# SPDX-License-Identifier: Apache-2.0
"""Which blocks of keys a block of queries must look at, and the other way."""

import jax
import jax.numpy as jnp
import numpy as np


def ranges(
  rows: int,
  queries: int,
  keys: int,
  q_segments_BL: jax.Array | None,
  k_segments_BL: jax.Array | None,
  window: jax.Array | int | None,
  q_rows_L: jax.Array | None = None,
  k_rows: int | None = None,
) -> tuple[jax.Array, jax.Array]:
  """Two ranges of blocks that follow each other: some visible, all visible.

  Segments may be any numbers in any order. Two blocks are compared by their
  smallest and largest number: documents that follow each other cost what they
  see, and nothing visible is ever left out.

  Args:
    rows: L, a multiple of both sizes.
    queries: rows of a block of queries.
    keys: rows of a block of keys.
    q_segments_BL: [B, L] int32 or None.
    k_segments_BL: [B, L] int32 or None.
    window: keys that a query sees, or None.
    q_rows_L: [L] int32, where the queries stand, ascending; None: from row 0.
    k_rows: S, of the keys, a multiple of `keys`; None: L.

  Returns:
    Of each block of queries [B or 1, L / queries, 4] int32: start, full_start,
    full_stop, stop. Only blocks of keys in [start, stop) have visible pairs; in
    [full_start, full_stop) all pairs are visible. And of each block of keys
    [B or 1, S / keys, 4], in blocks of queries.
  """
  static = q_segments_BL is None and (window is None or isinstance(window, int))
  static = static and q_rows_L is None
  xp = np if static else jnp  # Constants in the program, no kernels.
  if q_rows_L is None:
    first_q = xp.arange(0, rows, queries)[:, None]
    last_q = first_q + queries - 1
  else:
    blocks = q_rows_L.reshape(-1, queries)
    first_q, last_q = blocks[:, :1], blocks[:, -1:]
  first_k = xp.arange(0, k_rows or rows, keys)[None]
  last_k = first_k + keys - 1
  near, full = last_q >= first_k, first_q >= last_k
  if window is not None:
    near &= first_q - last_k < window
    full &= last_q - first_k < window
  near, full = near[None], full[None]
  if q_segments_BL is not None:
    low_q, high_q = _extremes(q_segments_BL, queries)
    low_k, high_k = _extremes(k_segments_BL, keys)
    low_q, high_q = low_q[:, :, None], high_q[:, :, None]
    low_k, high_k = low_k[:, None], high_k[:, None]
    near &= (low_q <= high_k) & (low_k <= high_q)
    full &= (low_q == high_k) & (low_k == high_q)  # All four are one.
  # Without segments and window the first part of each block of queries is
  # empty, and the last part of each block of keys.
  return _range(xp, near, full, 0), _range(xp, near.mT, full.mT, 3)


def _extremes(segments_BL, size):
  blocks = segments_BL.reshape(segments_BL.shape[0], -1, size)
  return jnp.min(blocks, axis=2), jnp.max(blocks, axis=2)


def _range(xp, near, full, none):
  """The four ends; `none`: that at which an empty full part lies, 0 or 3."""
  index = xp.arange(near.shape[-1])[None, None]
  stop = xp.max(xp.where(near, index + 1, 0), axis=-1)
  start = xp.minimum(xp.argmax(near, axis=-1), stop)
  some, full_start = full.any(-1), xp.argmax(full, axis=-1)
  behind = ~full & (index >= full_start[..., None])
  full_stop = xp.where(behind.any(-1), xp.argmax(behind, axis=-1), stop)
  empty = stop if none else start
  full_start = xp.where(some, full_start, empty)
  full_stop = xp.where(some, full_stop, empty)
  ends = (start, full_start, full_stop, stop)
  return xp.stack(ends, axis=-1).astype('int32')
