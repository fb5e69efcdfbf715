# SPDX-License-Identifier: Apache-2.0
"""Newton-Schulz with symmetric products in Triton: one triangle is computed.

A program computes one tile at or beyond the diagonal and
writes it twice, the second time transposed. Tiles of one matrix come one after
another: its rows stay in the cache. Offsets in arrays beyond 4 GiB are 64 bits
wide: Pallas sees to that.

In tiles that meet the diagonal both sides of it are computed. Of a a^T they are
the same sums in the same order, so that any of the writers will do; of a b^T
each element gets one writer, by masks, which are slow.
"""

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from ops import dispatch
from ops.newton_schulz import api
from ops.triton import launch
from ops.triton import tiles as tiles_lib
from ops.triton.backend import plgpu


def unsupported(x: jax.Array, *, dtype: jnp.dtype, **_) -> str | None:
  """Why it cannot run."""
  del x
  if jnp.dtype(dtype).name not in ('float16', 'bfloat16', 'float32'):
    return f'iterates in float16, bfloat16 or float32, not {dtype}'
  return None


def newton_schulz(x: jax.Array, **options) -> jax.Array:
  """See `ops.newton_schulz`."""
  return api.newton_schulz(x, symmetric_matmul, _multiples, **options)


def _multiples(n, depth, dtype):
  size = tile(n, depth, dtype)
  return max(size.m, size.n, size.k), size.k


def symmetric_matmul(
  a_BNK: jax.Array,
  b_BNK: jax.Array,
  c_BNN: jax.Array | None = None,
  scale_B: jax.Array | None = None,
  *,
  alpha: float = 1.0,
  beta: float = 0.0,
  diagonal: float = 0.0,
) -> jax.Array:
  """`scale (alpha a b^T + beta c + diagonal I)`, which must be symmetric.

  Args:
    a_BNK: [B, N, K]; N and K are multiples of what `tile` says.
    b_BNK: [B, N, K], `a_BNK` itself or what commutes with it.
    c_BNN: [B, N, N] symmetric.
    scale_B: [B] float32.
    alpha: of the product, not 0.
    beta: of `c_BNN`.
    diagonal: added to the diagonal.

  Returns:
    [B, N, N] in the type of `a_BNK`, summed in float32.
  """
  batch, n, depth = a_BNK.shape
  size = tile(n, depth, a_BNK.dtype)
  more = {'c': c_BNN, 'scale': scale_B}
  more = {name: array for name, array in more.items() if array is not None}
  kernel = functools.partial(
    _kernel,
    names=tuple(more),
    size=size,
    same=b_BNK is a_BNK,
    alpha=alpha,
    beta=beta,
    diagonal=diagonal,
  )
  return launch.kernel_call(
    kernel,
    'symmetric_matmul',
    (num_tiles(n, size), batch),
    jax.ShapeDtypeStruct((batch, n, n), a_BNK.dtype),
    warps=size.warps,
    stages=size.stages,
  )(a_BNK, b_BNK, *more.values())


def tile(n: int, depth: int, dtype: jnp.dtype) -> tiles_lib.Tile:
  """For [B, n, depth]; n must be a multiple of its m and n, depth of its k."""
  return tiles_lib.tile('symmetric', dtype).fit(n, n, depth)


def num_tiles(n: int, size: tiles_lib.Tile) -> int:
  """Of one triangle, those on the diagonal included."""
  large, ratio = _ratio(size)
  count = n // large
  return ratio * count * (count + 1) // 2


def _ratio(size):
  large = max(size.m, size.n)
  return large, large // min(size.m, size.n)


def tile_index(t, size: tiles_lib.Tile):
  """(row, column) of tile t, in tiles: 0, then all that the next one joins.

  The longer side L of a tile counts: its row or column l has (l + 1) L / S
  tiles, with S the shorter one. Tall tiles thus fill the lower triangle, wide
  ones the upper, square ones the lower.
  """
  _, ratio = _ratio(size)
  root = jnp.sqrt(8.0 * (t // ratio).astype(jnp.float32) + 1.0)
  large = ((root - 1.0) * 0.5).astype(jnp.int32)
  # The root of a float32 may be off by one at the border.
  first = lambda i: ratio * (i * (i + 1) // 2)
  large = jnp.where(first(large) > t, large - 1, large)
  large = jnp.where(first(large + 1) <= t, large + 1, large)
  small = t - first(large)
  return (large, small) if size.m >= size.n else (small, large)


def _kernel(a_ref, b_ref, *refs, names, size, same, alpha, beta, diagonal):
  *more, o_ref = refs
  more = dict(zip(names, more, strict=True))
  batch = pl.program_id(1)
  i, j = tile_index(pl.program_id(0), size)
  rows, columns = pl.ds(i * size.m, size.m), pl.ds(j * size.n, size.n)
  here = o_ref.at[batch, rows, columns]
  mirrored = o_ref.at[batch, columns, rows]

  def turn(k, acc):
    depth = pl.ds(k * size.k, size.k)
    a = plgpu.load(a_ref.at[batch, rows, depth])
    b = plgpu.load(b_ref.at[batch, columns, depth])
    if dispatch.platform() == 'cpu':  # XLA of jax 0.12 has not all of bfloat16.
      a, b = a.astype(jnp.float32), b.astype(jnp.float32)
    return acc + jax.lax.dot_general(
      a, b, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32
    )

  # Row - column of the first element, and whether the tile meets the diagonal.
  ahead = i * size.m - j * size.n
  near = (ahead < size.n) & (-ahead < size.m)
  # What is added starts the sum: behind it there would be too few registers.
  acc = jnp.zeros((size.m, size.n), jnp.float32)
  if 'c' in more:
    acc = plgpu.load(more['c'].at[batch, rows, columns]).astype(jnp.float32)
    acc *= beta / alpha
  if diagonal:
    on = lambda acc: jnp.where(
      _ahead(ahead, acc.shape, 0) == 0, acc + diagonal / alpha, acc
    )
    acc = jax.lax.cond(near, on, lambda acc: acc, acc)
  acc = jax.lax.fori_loop(0, a_ref.shape[-1] // size.k, turn, acc)
  factor = alpha
  if 'scale' in more:
    factor *= more['scale'][batch]
  out = (acc * factor).astype(o_ref.dtype)
  if same:
    plgpu.store(here, out)
    plgpu.store(mirrored, out.T)
    return

  sign = 1 if size.m >= size.n else -1

  @pl.when(near)
  def _():
    mine = sign * _ahead(ahead, out.shape, 0) >= 0
    turned = sign * _ahead(ahead, out.shape[::-1], 1) > 0
    plgpu.store(here, out, mask=mine)
    plgpu.store(mirrored, out.T, mask=turned)

  @pl.when(jnp.logical_not(near))
  def _():
    plgpu.store(here, out)
    plgpu.store(mirrored, out.T)


def _ahead(first, shape, axis):
  """Row - column of each element; rows of the matrix lie along `axis`."""
  iota = functools.partial(jax.lax.broadcasted_iota, jnp.int32, shape)
  return first + iota(axis) - iota(1 - axis)
