# SPDX-License-Identifier: Apache-2.0
"""Symmetric products of stacks of matrices, for Hopper GPUs.

Of the squares of 256 x 256 that make up the result, those on the diagonal and
on one side of it are computed, each by a pair of programs that has an upper and
a lower half; what is beside the diagonal is written twice, the second time
transposed.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from ops import persistent
from ops.persistent import COLUMNS, HALF, ROWS, STEP, Block, Tile


# Kernels of the same shape are made once: each takes a second to compile.
@functools.partial(jax.jit, static_argnames=('alpha', 'beta', 'diagonal'))
def symmetric_matmul(
  a_BNK: jax.Array,
  b_BNK: jax.Array,
  c_BNN: jax.Array | None = None,
  *,
  alpha: float = 1.0,
  beta: float = 0.0,
  diagonal: float = 0.0,
) -> jax.Array:
  """`alpha a b^T + beta c + diagonal I`, which must be symmetric.

  Args:
    a_BNK: [B, N, K], 16-bit floats, N and K multiples of COLUMNS.
    b_BNK: [B, N, K], `a_BNK` itself or what commutes with it.
    c_BNN: [B, N, N] symmetric.
    alpha: of the product.
    beta: of `c_BNN`.
    diagonal: added to the diagonal.

  Returns:
    [B, N, N] in the type of `a_BNK`, summed in float32.
  """
  batch, n, depth = a_BNK.shape
  squares = np.stack(np.triu_indices(n // COLUMNS)).astype(np.int32)
  count = squares.shape[1]

  def kernel(rows_ref, columns_ref, a_ref, b_ref, *refs):
    c_ref, y_ref = (None, *refs)[-2:]

    def tile(index, place, group):
      matrix = lax.div(index, jnp.int32(count))
      square = lax.rem(index, jnp.int32(count))
      row, column = rows_ref[square], columns_ref[square]
      first = row * COLUMNS + place * ROWS
      rows, columns = pl.ds(first, ROWS), pl.ds(column * COLUMNS, COLUMNS)
      part = lambda i: pl.ds(column * COLUMNS + i * STEP, STEP)
      own = pl.ds(first + group * HALF, HALF)
      # Column - row of an element on the diagonal, in the first part.
      on = place * ROWS + group * HALF

      def store(sums, write, read):
        (sum_,) = sums
        added = []
        for i in range(COLUMNS // STEP):
          y = sum_[:, i * STEP : (i + 1) * STEP]
          y = y if alpha == 1 else y * alpha
          if c_ref is not None:
            added = added or read()
            y += beta * added.pop(0).astype(jnp.float32)
          if diagonal:
            here = (_column_less_row() == on - i * STEP) & (row == column)
            y = jnp.where(here, y + diagonal, y)
          write(y, y_ref.at[matrix, own, part(i)])
          mirrored = y_ref.at[matrix, part(i), own]
          write(y, mirrored, turned=True, when=row != column)

      operands = a_ref.at[matrix, rows], b_ref.at[matrix, columns]
      extras = (
        ()
        if c_ref is None
        else [
          [c_ref.at[matrix, rows, part(i)] for i in (j, j + 1)]
          for j in range(0, COLUMNS // STEP, 2)
        ]
      )
      return Tile(operands, depth // STEP, store, extras)

    return tile, batch * count

  def multiply(group, blocks, sums):
    a, b = blocks
    a = a.at[pl.ds(group * HALF, HALF)]
    plgpu.wgmma(sums[0], a, b.transpose((1, 0)))

  arrays = (a_BNK, b_BNK) if c_BNN is None else (a_BNK, b_BNK, c_BNN)
  return persistent.launch(
    kernel,
    multiply,
    'symmetric_matmul',
    (*squares, *arrays),
    [(batch, n, n)],
    blocks=[Block((ROWS, STEP), 1), Block((COLUMNS, STEP), 1, shared=True)],
    sums=(COLUMNS,),
    pair=2,
  )[0]


def _column_less_row():
  """Of each element of a part."""
  shape = HALF, STEP
  iota = lambda axis: lax.broadcasted_iota(jnp.int32, shape, axis)
  return iota(1) - iota(0)
