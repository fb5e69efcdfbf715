# SPDX-License-Identifier: Apache-2.0
"""Which blocks of keys a block of queries must look at, and the other way."""

import jax
import jax.numpy as jnp


def ranges(
  rows: int,
  queries: int,
  keys: int,
  q_segments_BL: jax.Array | None,
  k_segments_BL: jax.Array | None,
  window: jax.Array | int | None,
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

  Returns:
    Of each block of queries [B or 1, L / queries, 4] int32: start, full_start,
    full_stop, stop. Only blocks of keys in [start, stop) have visible pairs; in
    [full_start, full_stop) all pairs are visible. And of each block of keys
    [B or 1, L / keys, 4], in blocks of queries.
  """
  first_q = jnp.arange(0, rows, queries)[:, None]
  first_k = jnp.arange(0, rows, keys)[None]
  last_q, last_k = first_q + queries - 1, first_k + keys - 1
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
    full &= (low_q == high_k) & (low_k == high_q) & (low_q == high_q)
  # Without segments and window the first part of each block of queries is
  # empty, and the last part of each block of keys.
  return _range(near, full, 0), _range(near.mT, full.mT, 3)


def _extremes(segments_BL, size):
  blocks = segments_BL.reshape(segments_BL.shape[0], -1, size)
  return jnp.min(blocks, axis=2), jnp.max(blocks, axis=2)


def _range(near, full, none):
  """The four ends; `none`: that at which an empty full part lies, 0 or 3."""
  index = jnp.arange(near.shape[-1])[None, None]
  stop = jnp.max(jnp.where(near, index + 1, 0), axis=-1)
  start = jnp.minimum(jnp.argmax(near, axis=-1), stop)
  some, full_start = full.any(-1), jnp.argmax(full, axis=-1)
  behind = ~full & (index >= full_start[..., None])
  full_stop = jnp.where(behind.any(-1), jnp.argmax(behind, axis=-1), stop)
  empty = stop if none else start
  full_start = jnp.where(some, full_start, empty)
  full_stop = jnp.where(some, full_stop, empty)
  ends = (start, full_start, full_stop, stop)
  return jnp.stack(ends, axis=-1).astype(jnp.int32)
