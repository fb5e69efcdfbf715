# SPDX-License-Identifier: Apache-2.0
"""Products of tokens with the matrix of each one's expert, for Hopper GPUs.

Tokens lie in blocks of ROWS rows that belong to one expert each, so that no
tile needs a mask; a block that is not full ends with zeros.

Axis letters: P rows of all blocks; G the 2F fused columns, gate first; K the
dimension of a sum, N columns.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from ops.experts import persistent
from ops.experts.persistent import HALF, STEP, Tile

ROWS = 2 * HALF  # Of a tile.
COLUMNS = 256  # Of a tile. Sums of 64 x 256 fill half of a group's registers.
_LOG2_E = 1.4426950408889634


def up(
  x_PD: jax.Array,
  gate_up_EDG: jax.Array,
  expert_B: jax.Array,
  first: jax.Array,
  *,
  save: bool,
) -> list[jax.Array]:
  """silu(gate) * up [P, F] of x @ gate_up and, to `save`, its slopes [P, G].

  These are the derivatives by gate and by up. See `matmul` for the arguments.
  """
  (rows, depth), half = x_PD.shape, gate_up_EDG.shape[2] // 2
  width = COLUMNS // 2  # Of gate and of up.

  def kernel(expert_ref, first_ref, x_ref, w_ref, a_ref, slopes_ref=None):
    def tile(index, group):
      block, column = _divide(index, half // width)
      expert = expert_ref[block]
      row = _rows(block, group)

      def store(sums, write):
        gates, ups = sums
        for start in range(0, width, STEP):
          gate, up_ = (x[:, start : start + STEP] for x in (gates, ups))
          sigmoid = 1 / (1 + jnp.exp2(gate * -_LOG2_E))
          silu = gate * sigmoid
          at = column * width + start
          write(silu * up_, a_ref.at[row, pl.ds(at, STEP)])
          if slopes_ref is not None:
            slope = up_ * (sigmoid * (1 + gate - silu))
            write(slope, slopes_ref.at[row, pl.ds(at, STEP)])
            write(silu, slopes_ref.at[row, pl.ds(half + at, STEP)])

      matrix = lambda at: w_ref.at[expert, :, pl.ds(at + column * width, width)]
      operands = x_ref.at[_rows(block)], matrix(0), matrix(half)
      return Tile(operands, depth // STEP, store)

    return tile, first_ref[first.size - 1] * (half // width)

  def multiply(group, blocks, sums):
    x, *matrices = blocks
    for sum_, matrix in zip(sums, matrices, strict=True):
      plgpu.wgmma(sum_, x.at[pl.ds(group * HALF, HALF)], matrix)

  matrix = (STEP, width), 0
  return persistent.launch(
    kernel,
    multiply,
    'experts_up',
    (expert_B, first, x_PD, gate_up_EDG),
    [(rows, half), (rows, 2 * half)][: 1 + save],
    blocks=[((ROWS, STEP), 1), matrix, matrix],
    sums=(width, width),
  )


def matmul(
  x_PK: jax.Array,
  w: jax.Array,
  expert_B: jax.Array,
  first: jax.Array,
  *,
  transposed: bool = False,
) -> jax.Array:
  """X @ w of the expert [P, N].

  Args:
    x_PK: [P, K], 16-bit floats.
    w: [E, K, N] or, if `transposed`, [E, N, K], read as it lies. K and N are
      multiples of COLUMNS.
    expert_B: the expert of each block.
    first: [E + 1], the first block of each expert; one at least for each.
    transposed: see `w`.

  Returns:
    [P, N]; rows behind the last block are not written.
  """
  (rows, depth), width = x_PK.shape, w.shape[1 if transposed else 2]

  def kernel(expert_ref, first_ref, x_ref, w_ref, y_ref):
    def tile(index, group):
      block, column = _divide(index, width // COLUMNS)
      columns = pl.ds(column * COLUMNS, COLUMNS)
      matrix = w_ref.at[expert_ref[block]]
      matrix = matrix.at[columns] if transposed else matrix.at[:, columns]
      store = _store(y_ref.at[_rows(block, group)], column)
      return Tile((x_ref.at[_rows(block)], matrix), depth // STEP, store)

    return tile, first_ref[first.size - 1] * (width // COLUMNS)

  def multiply(group, blocks, sums):
    x, matrix = blocks
    matrix = plgpu.transpose_ref(matrix, (1, 0)) if transposed else matrix
    plgpu.wgmma(sums[0], x.at[pl.ds(group * HALF, HALF)], matrix)

  matrix = ((COLUMNS, STEP), 1) if transposed else ((STEP, COLUMNS), 0)
  return persistent.launch(
    kernel,
    multiply,
    'experts_matmul',
    (expert_B, first, x_PK, w),
    [(rows, width)],
    blocks=[((ROWS, STEP), 1), matrix],
    sums=(COLUMNS,),
  )[0]


def d_weights(x_PK: jax.Array, dy_PN: jax.Array, first: jax.Array) -> jax.Array:
  """[E, K, N]: x^T dy over the rows of each expert; of no rows, zeros."""
  height, width, experts = x_PK.shape[1], dy_PN.shape[1], first.size - 1
  high, wide = height // ROWS, width // COLUMNS

  def kernel(first_ref, x_ref, dy_ref, w_ref):
    def tile(index, group):
      expert, rest = _divide(index, high * wide)
      row, column = _divide(rest, wide)
      begin, end = first_ref[expert], first_ref[expert + 1]
      # Reaches out of the array at its end, where nothing is read.
      rows = pl.ds(pl.multiple_of(begin * ROWS, ROWS), x_PK.shape[0])
      operands = (
        x_ref.at[rows, pl.ds(row * ROWS, ROWS)],
        dy_ref.at[rows, pl.ds(column * COLUMNS, COLUMNS)],
      )
      store = _store(w_ref.at[expert].at[_rows(row, group)], column)
      return Tile(operands, (end - begin) * (ROWS // STEP), store)

    return tile, experts * high * wide

  def multiply(group, blocks, sums):
    x, dy = blocks
    x = x.at[:, pl.ds(group * HALF, HALF)]
    plgpu.wgmma(sums[0], plgpu.transpose_ref(x, (1, 0)), dy)

  return persistent.launch(
    kernel,
    multiply,
    'experts_d_weights',
    (first, x_PK, dy_PN),
    [(experts, height, width)],
    blocks=[((STEP, ROWS), 0), ((STEP, COLUMNS), 0)],
    sums=(COLUMNS,),
  )[0]


def _divide(index, by):
  """Quotient and remainder; // and % ask about signs."""
  return lax.div(index, jnp.int32(by)), lax.rem(index, jnp.int32(by))


def _rows(block, group=None):
  """Of a block, or the half of them that a warp group has."""
  if group is None:
    return pl.ds(block * ROWS, ROWS)
  return pl.ds(block * ROWS + group * HALF, HALF)


def _store(rows_ref, column):
  """The `Tile.store` of one sum."""

  def store(sums, write):
    for start in range(0, COLUMNS, STEP):
      at = pl.ds(column * COLUMNS + start, STEP)
      write(sums[0][:, start : start + STEP], rows_ref.at[:, at])

  return store
