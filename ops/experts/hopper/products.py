# SPDX-License-Identifier: Apache-2.0
"""Products of tokens with the matrix of each one's expert, for Hopper GPUs.

Tokens lie in blocks of ROWS rows that belong to one expert each, so that no
tile needs a mask; a block that is not full ends with zeros.

Axis letters: P rows of all blocks; G the 2F fused columns, gate first; K the
dimension of a sum, N columns.
"""

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from ops.hopper import persistent
from ops.hopper.persistent import COLUMNS, STEP, Block, Tile
from ops.hopper.warp_groups import HALF, LOG2_E, ROWS, divide


# Kernels of the same shape are made once: each takes a second to compile.
@functools.partial(jax.jit, static_argnames='save')
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
  pair = _pair(half // width)

  def kernel(expert_ref, first_ref, x_ref, w_ref, a_ref, slopes_ref=None):
    def tile(index, place, group):
      block, column = divide(index, half // width // pair)
      column = column * pair + place
      expert = expert_ref[block]
      row = _rows(block, group)

      def store(sums, memory):
        gates, ups = sums
        for start in range(0, width, STEP):
          gate, up_ = (x[:, start : start + STEP] for x in (gates, ups))
          sigmoid = 1 / (1 + jnp.exp2(gate * -LOG2_E))
          silu = gate * sigmoid
          at = column * width + start
          memory.write(silu * up_, a_ref.at[row, pl.ds(at, STEP)])
          if slopes_ref is not None:
            slope = up_ * (sigmoid * (1 + gate - silu))
            memory.write(slope, slopes_ref.at[row, pl.ds(at, STEP)])
            memory.write(silu, slopes_ref.at[row, pl.ds(half + at, STEP)])

      matrix = lambda at: w_ref.at[expert, :, pl.ds(at + column * width, width)]
      operands = x_ref.at[_rows(block)], matrix(0), matrix(half)
      return Tile(operands, depth // STEP, store)

    return tile, first_ref[first.size - 1] * (half // width // pair)

  def multiply(group, blocks, sums):
    x, *matrices = blocks
    for sum_, matrix in zip(sums, matrices, strict=True):
      plgpu.wgmma(sum_, x.at[pl.ds(group * HALF, HALF)], matrix)

  matrix = Block((STEP, width), 0)
  return persistent.launch(
    kernel,
    multiply,
    'experts_up',
    (expert_B, first, x_PD, gate_up_EDG),
    _arrays(x_PD, (rows, half), (rows, 2 * half))[: 1 + save],
    blocks=[Block((ROWS, STEP), 1, shared=True), matrix, matrix],
    sums=(width, width),
    pair=pair,
  )


@functools.partial(jax.jit, static_argnames='transposed')
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

  def finish(y_ref, rows, own, column):
    del rows
    return _store(y_ref.at[own], column), ()

  blocks = x_PK, expert_B, first
  return _rows_times(finish, 'experts_matmul', blocks, w, transposed)


@jax.jit
def d_up(
  dy_PK: jax.Array,
  w_ENK: jax.Array,
  slopes_PG: jax.Array,
  expert_B: jax.Array,
  first: jax.Array,
) -> jax.Array:
  """(dy @ w^T) times each half of the slopes that `up` saved [P, 2N].

  See `matmul`, `transposed`, for the arguments.
  """
  half = slopes_PG.shape[1] // 2

  def finish(slopes_ref, dh_ref, rows, own, column):
    parts = [
      [pl.ds(at + column * COLUMNS + i, STEP) for at in (0, half)]
      for i in range(0, COLUMNS, STEP)
    ]

    def store(sums, memory):
      for i, both in enumerate(parts):
        da = sums[0][:, i * STEP : (i + 1) * STEP]
        for slope, part in zip(memory.read(), both, strict=True):
          memory.write(da * slope.astype(jnp.float32), dh_ref.at[own, part])

    return store, [[slopes_ref.at[rows, part] for part in b] for b in parts]

  blocks = dy_PK, expert_B, first
  return _rows_times(
    finish, 'experts_d_up', blocks, w_ENK, True, slopes_PG, columns=2 * half
  )


def _rows_times(finish, name, blocks, w, transposed, *more, columns=None):
  """Each block of rows times the matrix of its expert.

  Args:
    finish: (references to `more` and to the result, rows of a block, those of a
      warp group, column of the tile) -> `store` and `extras` of `Tile`.
    name: of the kernel.
    blocks: rows, the expert of each block, the first block of each expert.
    w: see `matmul`.
    transposed: see `matmul`.
    *more: arrays.
    columns: of the result, if not those of the product.
  """
  x_PK, expert_B, first = blocks
  (rows, depth), width = x_PK.shape, w.shape[1 if transposed else 2]
  pair = _pair(width // COLUMNS)

  def kernel(expert_ref, first_ref, *refs):
    x_ref, w_ref, *refs = refs

    def tile(index, place, group):
      block, column = divide(index, width // COLUMNS // pair)
      column = column * pair + place
      columns = pl.ds(column * COLUMNS, COLUMNS)
      matrix = w_ref.at[expert_ref[block]]
      matrix = matrix.at[columns] if transposed else matrix.at[:, columns]
      store, extras = finish(*refs, _rows(block), _rows(block, group), column)
      operands = x_ref.at[_rows(block)], matrix
      return Tile(operands, depth // STEP, store, extras)

    return tile, first_ref[first.size - 1] * (width // COLUMNS // pair)

  def multiply(group, parts, sums):
    x, matrix = parts
    matrix = matrix.transpose((1, 0)) if transposed else matrix
    plgpu.wgmma(sums[0], x.at[pl.ds(group * HALF, HALF)], matrix)

  matrix = (
    Block((COLUMNS, STEP), 1) if transposed else Block((STEP, COLUMNS), 0)
  )
  return persistent.launch(
    kernel,
    multiply,
    name,
    (expert_B, first, x_PK, w, *more),
    _arrays(x_PK, (rows, columns or width)),
    blocks=[Block((ROWS, STEP), 1, shared=True), matrix],
    sums=(COLUMNS,),
    pair=pair,
  )[0]


@jax.jit
def d_weights(x_PK: jax.Array, dy_PN: jax.Array, first: jax.Array) -> jax.Array:
  """[E, K, N]: x^T dy over the rows of each expert, a block at least."""
  shape = first.size - 1, x_PK.shape[1], dy_PN.shape[1]
  outputs = _arrays(x_PK, shape)
  target = lambda w_ref: (w_ref, False)
  return _d_weights(x_PK, dy_PN, (first,), target, outputs=outputs)[0]


@jax.jit
def d_weights_into(
  x_PK: jax.Array,
  dy_PN: jax.Array,
  first: jax.Array,
  stack: jax.Array,
  at: jax.Array,
) -> jax.Array:
  """[N, E, K, N] with `d_weights` in a layer, or added: `sink.Sink`."""
  stack_ref = jax.new_ref(stack)

  def target(at_ref, stack_ref):
    adds = at_ref[1] > 0 if stack.dtype == jnp.float32 else False
    return stack_ref.at[at_ref[0]], adds

  _d_weights(x_PK, dy_PN, (first, at), target, changed=stack_ref)
  return jax.freeze(stack_ref)


def _d_weights(x_PK, dy_PN, numbers, target, **results):
  """Launches; `target` gives [E, K, N] and whether to add, of references."""
  first = numbers[0]
  height, width, experts = x_PK.shape[1], dy_PN.shape[1], first.size - 1
  wide, pair = width // COLUMNS, _pair(height // ROWS)
  high = height // ROWS // pair

  def kernel(first_ref, *refs):
    *at, x_ref, dy_ref, w_ref = refs
    w_ref, adds = target(*at, w_ref)

    def tile(index, place, group):
      expert, rest = divide(index, high * wide)
      row, column = divide(rest, wide)
      row = row * pair + place
      begin, end = first_ref[expert], first_ref[expert + 1]
      # Reaches out of the array at its end, where nothing is read.
      rows = pl.ds(pl.multiple_of(begin * ROWS, ROWS), x_PK.shape[0])
      operands = (
        x_ref.at[rows, pl.ds(row * ROWS, ROWS)],
        dy_ref.at[rows, pl.ds(column * COLUMNS, COLUMNS)],
      )
      store = _store(w_ref.at[expert].at[_rows(row, group)], column, adds)
      return Tile(operands, (end - begin) * (ROWS // STEP), store)

    return tile, experts * high * wide

  def multiply(group, blocks, sums):
    x, dy = blocks
    x = x.at[:, pl.ds(group * HALF, HALF)]
    plgpu.wgmma(sums[0], x.transpose((1, 0)), dy)

  return persistent.launch(
    kernel,
    multiply,
    'experts_d_weights',
    (*numbers, x_PK, dy_PN),
    blocks=[Block((STEP, ROWS), 0), Block((STEP, COLUMNS), 0, shared=True)],
    sums=(COLUMNS,),
    pair=pair,
    **results,
  )


def _arrays(like, *shapes):
  """What a kernel makes, in the type of an operand."""
  return [jax.ShapeDtypeStruct(shape, like.dtype) for shape in shapes]


def _pair(tiles):
  """How many programs go together, of that many tiles that share an operand."""
  return 2 if tiles % 2 == 0 else 1


def _rows(block, group=None):
  """Of a block, or the half of them that a warp group has."""
  if group is None:
    return pl.ds(block * ROWS, ROWS)
  return pl.ds(block * ROWS + group * HALF, HALF)


def _store(rows_ref, column, adds=False):
  """The `Tile.store` of one sum, or what adds it to what is there."""

  def store(sums, memory):
    for start in range(0, COLUMNS, memory.columns):
      at = pl.ds(column * COLUMNS + start, memory.columns)
      part = sums[0][:, start : start + memory.columns]
      memory.write(part, rows_ref.at[:, at], adds=adds)

  return store
