# SPDX-License-Identifier: Apache-2.0
"""Symmetric products of stacks of matrices, for Hopper GPUs.

Of the squares of 256 x 256 that make up the result, those on the diagonal and
on one side of it are computed, each by a pair of programs that has an upper and
a lower half; what is beside the diagonal is written twice, the second time
transposed.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from ops import persistent, warp_groups
from ops.persistent import COLUMNS, STEP, Block, Tile
from ops.warp_groups import HALF, ROWS


# Kernels of the same shape are made once: each takes a second to compile.
@functools.partial(jax.jit, static_argnames=('alpha', 'beta', 'diagonal'))
def symmetric_matmul(
  a, b, c=None, scale=None, *, alpha=1.0, beta=0.0, diagonal=0.0
):
  """See `symmetric.symmetric_matmul`; N and K are multiples of COLUMNS."""
  batch, n, depth = a.shape
  squares = np.stack(np.triu_indices(n // COLUMNS)).astype(np.int32)
  count = squares.shape[1]
  arrays = {'scale': scale, 'a': a, 'b': b, 'c': c}
  arrays = {name: array for name, array in arrays.items() if array is not None}

  def kernel(rows_ref, columns_ref, *refs):
    *refs, y_ref = refs
    refs = dict(zip(arrays, refs, strict=True))

    def tile(index, place, group):
      matrix, square = warp_groups.divide(index, count)
      half = _Half(rows_ref[square], columns_ref[square], place, group)
      extras = ()
      if 'c' in refs:
        parts = [refs['c'].at[matrix, half.rows, part] for part in half.parts]
        extras = parts[0:2], parts[2:4]
      factors = _Factors(
        alpha,
        beta if extras else 0,
        diagonal,
        refs['scale'][matrix] if 'scale' in refs else None,
      )
      store = functools.partial(_store, y_ref.at[matrix], half, factors)
      operands = (
        refs['a'].at[matrix, half.rows],
        refs['b'].at[matrix, half.columns],
      )
      return Tile(operands, depth // STEP, store, extras)

    return tile, batch * count

  def multiply(group, blocks, sums):
    a, b = blocks
    a = a.at[pl.ds(group * HALF, HALF)]
    plgpu.wgmma(sums[0], a, b.transpose((1, 0)))

  return persistent.launch(
    kernel,
    multiply,
    'symmetric_matmul',
    (*squares, *arrays.values()),
    [jax.ShapeDtypeStruct((batch, n, n), a.dtype)],
    blocks=[Block((ROWS, STEP), 1), Block((COLUMNS, STEP), 1, shared=True)],
    sums=(COLUMNS,),
    pair=2,
  )[0]


class _Factors(NamedTuple):
  """Those of `symmetric.symmetric_matmul`; `scale` is None or of a matrix."""

  alpha: float
  beta: float
  diagonal: float
  scale: Any


class _Half:
  """What a program, and in it a warp group, has of a square.

  Attributes:
    rows: of the program.
    own: those of the warp group.
    columns: of both.
    parts: the columns, as they are stored.
    on_diagonal: whether the square lies on the diagonal.
    ahead: row less column of the group's first element there.
  """

  def __init__(self, row, column, place, group):
    first, start = row * COLUMNS + place * ROWS, column * COLUMNS
    self.rows = pl.ds(first, ROWS)
    self.own = pl.ds(first + group * HALF, HALF)
    self.columns = pl.ds(start, COLUMNS)
    self.parts = [pl.ds(start + i, STEP) for i in range(0, COLUMNS, STEP)]
    self.on_diagonal = row == column
    self.ahead = place * ROWS + group * HALF


def _store(y_ref, half, factors, sums, memory):
  """The `Tile.store`."""
  added = []
  for i, part in enumerate(half.parts):
    y = sums[0][:, i * STEP : (i + 1) * STEP]
    y = y if factors.alpha == 1 else y * factors.alpha
    if factors.beta:
      added = added or memory.read()
      y += factors.beta * added.pop(0).astype(jnp.float32)
    if factors.diagonal:
      here = _column_less_row() == half.ahead - i * STEP
      y = jnp.where(here & half.on_diagonal, y + factors.diagonal, y)
    y = y if factors.scale is None else y * factors.scale
    memory.write(y, y_ref.at[half.own, part])
    mirrored = y_ref.at[part, half.own]
    memory.write(y, mirrored, turned=True, when=~half.on_diagonal)


def _column_less_row():
  """Of each element of a part."""
  shape = HALF, STEP
  iota = lambda axis: lax.broadcasted_iota(jnp.int32, shape, axis)
  return iota(1) - iota(0)
