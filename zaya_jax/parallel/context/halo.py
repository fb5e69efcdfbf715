# SPDX-License-Identifier: Apache-2.0
"""The tokens that stand before a device's chunks and lie on another device.

Every function here runs inside `jax.shard_map`; the L rows of a device are two
chunks (`zigzag`).

Axis letters: B sequences, L rows of this device, N = 2 chunks of this device, T
tokens of the halo, X features.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from zaya_jax import config as config_lib


def left(x_BLX: jax.Array, count: int, *, axis: str) -> jax.Array:
  """The last `count` tokens before each chunk of this device.

  One message to the right and, at the same time, one to the left: the second
  chunks run from the last device to the first.

  Args:
    x_BLX: [B, L, ...].
    count: tokens, at most those of a chunk.
    axis: the mesh axis over which rows are divided.

  Returns:
    [B, N, count, ...], zeros before the first chunk of all.

  Raises:
    UsageError: if a chunk is shorter than the halo.
  """
  n, index = jax.lax.axis_size(axis), jax.lax.axis_index(axis)
  x_BNLX = _chunks(x_BLX)
  if x_BNLX.shape[2] < count:
    raise config_lib.UsageError(
      f'--mesh.context={n} leaves {x_BNLX.shape[2]} tokens in a chunk and the '
      f'convolutions look back {count}; lower it or take longer sequences.'
    )
  last_BNTX = x_BNLX[:, :, x_BNLX.shape[2] - count :]
  right = [(i, i + 1) for i in range(n - 1)]
  early = jax.lax.ppermute(last_BNTX[:, 0], axis, right)
  back = [(i + 1, i) for i in range(n - 1)]
  late = jax.lax.ppermute(last_BNTX[:, 1], axis, back)
  # The last device holds the two chunks in the middle.
  late = jnp.where(index == n - 1, last_BNTX[:, 0], late)
  return jnp.stack([early, late], axis=1)


def segments(segments_BL: jax.Array, count: int, *, axis: str) -> jax.Array:
  """[B, N, count] the segments of `left`: -1 where there is no token.

  They are the same for all layers: ask once a step.
  """
  return left(segments_BL + 1, count, axis=axis) - 1


def apply(
  f: Callable[..., Any],
  x_BLX: jax.Array,
  segments_BL: jax.Array,
  before_BNT: jax.Array,
  *here_BLX: jax.Array,
  axis: str,
) -> Any:
  """`f` of the whole row, as far as it is this device's.

  Each chunk is computed behind its halo, whose results are dropped.

  Args:
    f: of x [B, L, X], segments [B, L] and `here`; causal, looks back at most T
      tokens of x, and never into another segment. (`ops.cca_prologue` is so.)
    x_BLX: [B, L, X].
    segments_BL: [B, L] int, not negative; zeros if each row is one segment.
    before_BNT: [B, N, T] what `segments` returns.
    *here_BLX: [B, L, ...] of which f looks at no other token: zero before.
    axis: as in `left`.

  Returns:
    [B, L, ...], or some of them.
  """
  batch, chunks, count = before_BNT.shape
  halo_BNTX = left(x_BLX, count, axis=axis)
  behind = lambda halo, x: jnp.concatenate([halo, _chunks(x)], axis=2).reshape(
    batch * chunks, -1, *x.shape[2:]
  )
  nothing = lambda x: jnp.zeros((batch, chunks, count, *x.shape[2:]), x.dtype)
  out = f(
    behind(halo_BNTX, x_BLX),
    behind(before_BNT, segments_BL),
    *(behind(nothing(x), x) for x in here_BLX),
  )
  own = lambda y: y[:, count:].reshape(*x_BLX.shape[:2], *y.shape[2:])
  return jax.tree.map(own, out)


def _chunks(x_BLX):
  return x_BLX.reshape(x_BLX.shape[0], 2, -1, *x_BLX.shape[2:])
