# SPDX-License-Identifier: Apache-2.0
"""Symmetric products of stacks of matrices, for Hopper GPUs.

A program computes two blocks of 128 x 128, a pair of them four, as `triangle`
says; what is beside the diagonal is written twice, the second time transposed.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from ops.hopper import persistent, warp_groups
from ops.hopper.persistent import COLUMNS, STEP, Block, Source, Tile
from ops.hopper.warp_groups import HALF, ROWS
from ops.newton_schulz.hopper import triangle


def symmetric_matmul(
  a, b, c=None, scale=None, *, alpha=1.0, beta=0.0, diagonal=0.0
):
  """See `triton.symmetric_matmul`; N and K are multiples of COLUMNS."""
  if scale is None:  # Exact, and one kernel for the first step and the others.
    scale = jnp.ones(a.shape[0], jnp.float32)
  return _launch(a, b, c, scale, alpha=alpha, beta=beta, diagonal=diagonal)


# Kernels of the same shape are made once: each takes a second to compile.
@functools.partial(jax.jit, static_argnames=('alpha', 'beta', 'diagonal'))
def _launch(a, b, c, scale, *, alpha, beta, diagonal):
  batch, n, depth = a.shape
  pairs = triangle.pairs(n // COLUMNS)
  arrays = {'scale': scale, 'a': a, 'b': b, 'c': c}
  arrays = {name: array for name, array in arrays.items() if array is not None}

  def kernel(pairs_ref, *refs):
    *refs, y_ref = refs
    refs = dict(zip(arrays, refs, strict=True))

    def tile(index, place, group):
      matrix, pair = warp_groups.divide(index, len(pairs))
      blocks = _Blocks(pairs_ref, pair, place, group)
      extras = ()
      if 'c' in refs:
        parts = [refs['c'].at[matrix, blocks.rows, p] for p in blocks.parts]
        extras = parts[0:2], parts[2:4]
      factors = _Factors(
        alpha,
        beta if extras else 0,
        diagonal,
        refs['scale'][matrix],
      )
      store = functools.partial(_store, y_ref.at[matrix], blocks, factors)
      columns = zip(blocks.columns, blocks.shared, strict=True)
      operands = (
        refs['a'].at[matrix, blocks.rows],
        [Source(refs['b'].at[matrix, at], shared) for at, shared in columns],
      )
      less = blocks.on_diagonal[1] & (group == 0), multiply_less
      return Tile(operands, depth // STEP, store, extras, less)

    return tile, batch * len(pairs)

  def multiply(group, blocks, sums):
    a, b = blocks
    a = a.at[pl.ds(group * HALF, HALF)]
    plgpu.wgmma(sums[0], a, b.transpose((1, 0)))

  def multiply_less(group, blocks, sums):
    """All but what lies above the diagonal."""
    a, b = blocks
    a, b = a.at[pl.ds(group * HALF, HALF)], b.at[: COLUMNS - HALF]
    plgpu.wgmma(sums[0].at[:, : COLUMNS - HALF], a, b.transpose((1, 0)))

  return persistent.launch(
    kernel,
    multiply,
    'symmetric_matmul',
    (pairs.reshape(-1), *arrays.values()),
    [jax.ShapeDtypeStruct((batch, n, n), a.dtype)],
    blocks=[Block((ROWS, STEP), 1), Block((COLUMNS, STEP), 1, parts=2)],
    sums=(COLUMNS,),
    pair=2,
  )[0]


class _Factors(NamedTuple):
  """Those of `triton.symmetric_matmul`; `scale` is of a matrix."""

  alpha: float
  beta: float
  diagonal: float
  scale: Any


class _Blocks:
  """What a program, and in it a warp group, has of a result.

  Attributes:
    rows: of both blocks.
    own: those of the warp group.
    columns: of each block.
    shared: of each, whether the other program of the pair has these too.
    on_diagonal: of each, whether it lies there.
    parts: the columns, as they are stored.
    ahead: of each part, its first row less its first column.
  """

  def __init__(self, pairs_ref, pair, place, group):
    at = lambda place, i: pairs_ref[(2 * pair + place) * 3 + i]
    row, *columns = [at(place, i) for i in range(3)]
    own = row * ROWS + group * HALF
    starts = [c * ROWS + i for c in columns for i in range(0, ROWS, STEP)]
    self.rows = pl.ds(row * ROWS, ROWS)
    self.own = pl.ds(own, HALF)
    self.columns = [pl.ds(column * ROWS, ROWS) for column in columns]
    self.shared = True, at(0, 2) == at(1, 2)
    self.on_diagonal = [row == column for column in columns]
    self.parts = [pl.ds(start, STEP) for start in starts]
    self.ahead = [own - start for start in starts]


def _store(y_ref, blocks, factors, sums, memory):
  """The `Tile.store`."""
  added = []
  for i, part in enumerate(blocks.parts):
    y = sums[0][:, i * STEP : (i + 1) * STEP]
    y = y if factors.alpha == 1 else y * factors.alpha
    if factors.beta:
      added = added or memory.read()
      y += factors.beta * added.pop(0).astype(jnp.float32)
    ahead = blocks.ahead[i]
    if factors.diagonal:
      y = jnp.where(_column_less_row() == ahead, y + factors.diagonal, y)
    y *= factors.scale
    # Of a block on the diagonal, what lies above it mirrors what is below.
    own = ~blocks.on_diagonal[i * STEP // ROWS] | (ahead >= 0)
    memory.write(y, y_ref.at[blocks.own, part], when=own)
    mirrored = y_ref.at[part, blocks.own]
    memory.write(y, mirrored, turned=True, when=own & (ahead != 0))


def _column_less_row():
  """Of each element of a part."""
  shape = HALF, STEP
  iota = lambda axis: lax.broadcasted_iota(jnp.int32, shape, axis)
  return iota(1) - iota(0)
