# SPDX-License-Identifier: Apache-2.0
"""Products of tokens with the matrix of each one's expert, for Hopper.

Pallas kernels of JAX's Mosaic GPU. As many programs as the chip has processors
walk over the tiles of the result. In each, one warp group has the copy engine
fetch what comes next, also of the next tile, while two multiply: what Triton's
kernels lose at the ends of a tile is hidden (docs/performance.md).

Tokens lie in blocks of ROWS rows that belong to one expert each, so that no
tile needs a mask; a block that is not full ends with zeros.

Axis letters: P rows of all blocks; G the 2F fused columns, gate first; K the
dimension of a sum, N columns.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

ROWS = 128  # Of a tile; each of two warp groups has half of them.
COLUMNS = 256  # Of a tile. Sums of 64 x 256 fill half of a group's registers.
_HALF = ROWS // 2
_STEP = 64  # Of a sum: 128 bytes, the widest pattern without bank conflicts.
_STAGES = 4  # Steps in flight: 192 of 227 KiB.
_SLOTS = 2  # Parts of a result on their way out.
_LOG2_E = 1.4426950408889634
_PATTERN = (plgpu.TilingTransform((8, _STEP)), plgpu.SwizzleTransform(128))


class _Tile(NamedTuple):
  """What a program computes.

  Attributes:
    operands: references to what the pipeline reads.
    steps: of the sum.
    store: (sums of this warp group, write) writes the result, where
      write(value [64, 64], reference) takes a part of it.
  """

  operands: Sequence[Any]
  steps: int | jax.Array
  store: Callable[..., None]


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
        for start in range(0, width, _STEP):
          gate, up_ = (x[:, start : start + _STEP] for x in (gates, ups))
          sigmoid = 1 / (1 + jnp.exp2(gate * -_LOG2_E))
          silu = gate * sigmoid
          at = column * width + start
          write(silu * up_, a_ref.at[row, pl.ds(at, _STEP)])
          if slopes_ref is not None:
            slope = up_ * (sigmoid * (1 + gate - silu))
            write(slope, slopes_ref.at[row, pl.ds(at, _STEP)])
            write(silu, slopes_ref.at[row, pl.ds(half + at, _STEP)])

      matrix = lambda at: w_ref.at[expert, :, pl.ds(at + column * width, width)]
      operands = x_ref.at[_rows(block)], matrix(0), matrix(half)
      return _Tile(operands, depth // _STEP, store)

    return tile, first_ref[first.size - 1] * (half // width)

  def multiply(group, blocks, sums):
    x, *matrices = blocks
    for sum_, matrix in zip(sums, matrices, strict=True):
      plgpu.wgmma(sum_, x.at[pl.ds(group * _HALF, _HALF)], matrix)

  matrix = (_STEP, width), 0
  return _launch(
    kernel,
    multiply,
    'experts_up',
    (expert_B, first, x_PD, gate_up_EDG),
    [(rows, half), (rows, 2 * half)][: 1 + save],
    blocks=[((ROWS, _STEP), 1), matrix, matrix],
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
      return _Tile((x_ref.at[_rows(block)], matrix), depth // _STEP, store)

    return tile, first_ref[first.size - 1] * (width // COLUMNS)

  def multiply(group, blocks, sums):
    x, matrix = blocks
    matrix = plgpu.transpose_ref(matrix, (1, 0)) if transposed else matrix
    plgpu.wgmma(sums[0], x.at[pl.ds(group * _HALF, _HALF)], matrix)

  matrix = ((COLUMNS, _STEP), 1) if transposed else ((_STEP, COLUMNS), 0)
  return _launch(
    kernel,
    multiply,
    'experts_matmul',
    (expert_B, first, x_PK, w),
    [(rows, width)],
    blocks=[((ROWS, _STEP), 1), matrix],
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
      return _Tile(operands, (end - begin) * (ROWS // _STEP), store)

    return tile, experts * high * wide

  def multiply(group, blocks, sums):
    x, dy = blocks
    x = x.at[:, pl.ds(group * _HALF, _HALF)]
    plgpu.wgmma(sums[0], plgpu.transpose_ref(x, (1, 0)), dy)

  return _launch(
    kernel,
    multiply,
    'experts_d_weights',
    (first, x_PK, dy_PN),
    [(experts, height, width)],
    blocks=[((_STEP, ROWS), 0), ((_STEP, COLUMNS), 0)],
    sums=(COLUMNS,),
  )[0]


def _processors() -> int:
  """Of the GPU; of an H200, where there is none to ask."""
  return getattr(jax.devices()[0], 'core_count', 132)


def _divide(index, by):
  """Quotient and remainder; // and % ask about signs."""
  return lax.div(index, jnp.int32(by)), lax.rem(index, jnp.int32(by))


def _rows(block, group=None):
  """Of a block, or the half of them that a warp group has."""
  if group is None:
    return pl.ds(block * ROWS, ROWS)
  return pl.ds(block * ROWS + group * _HALF, _HALF)


def _store(rows_ref, column):
  """The `_Tile.store` of one sum."""

  def store(sums, write):
    for start in range(0, COLUMNS, _STEP):
      at = pl.ds(column * COLUMNS + start, _STEP)
      write(sums[0][:, start : start + _STEP], rows_ref.at[:, at])

  return store


def _launch(kernel, multiply, name, inputs, shapes, *, blocks, sums):
  """Runs a kernel.

  Args:
    kernel: of references to inputs and outputs: a function that gives the
      `_Tile` of an index and a warp group, and the number of tiles.
    multiply: (warp group, blocks, sums) issues the products of a step.
    name: of the kernel.
    inputs: arrays.
    shapes: of the outputs, which have the type of the last input.
    blocks: of each operand the shape that a step reads, and the axis along
      which steps go.
    sums: columns of each.
  """
  dtype = inputs[-1].dtype
  along = (lambda i: (i, 0), lambda i: (0, i))
  specs = [
    plgpu.BlockSpec(
      shape,
      along[axis],
      transforms=_PATTERN,
      memory_space=plgpu.SMEM,
      delay_release=1,  # A product is under way while the next one is issued.
    )
    for shape, axis in blocks
  ]

  def pipeline(multiply, context, steps):
    return plgpu.emit_pipeline_warp_specialized(
      multiply,
      grid=(steps,),
      memory_registers=40,
      in_specs=specs,
      wg_axis='group',
      num_compute_wgs=2,
      max_concurrent_steps=_STAGES,
      compute_context=context,
    )

  def body(*refs):
    tile, tiles = kernel(*refs)
    nothing = lambda *_, **__: None

    @functools.partial(
      pl.run_scoped,
      buffers=pipeline(nothing, nothing, _STAGES).get_allocations(
        *tile(0, 0).operands
      ),
      out_ref=plgpu.SMEM((2, _SLOTS, _HALF, _STEP), dtype, transforms=_PATTERN),
      collective_axes='group',
    )
    def _(buffers, out_ref):
      group = lax.axis_index('group')

      @plgpu.nd_loop((tiles,), collective_axes='processor')
      def _(place):
        here = tile(place.index[0], group)
        turn = 0

        def write(value, target_ref):
          nonlocal turn
          part_ref = out_ref.at[group, turn % _SLOTS]
          plgpu.wait_smem_to_gmem(_SLOTS - 1, wait_read_only=True)
          part_ref[...] = value.astype(dtype)
          plgpu.commit_smem()
          plgpu.copy_smem_to_gmem(part_ref, target_ref)
          turn += 1

        def context(run):
          def scope(*sums_refs):
            run(sums_refs)
            here.store([ref[...] for ref in sums_refs], write)

          pl.run_scoped(
            scope, *(plgpu.ACC((_HALF, n), jnp.float32) for n in sums)
          )

        def step(_, *args):
          *read, sums_refs = args
          multiply(group, read, sums_refs)
          plgpu.wgmma_wait(len(sums))  # For those of the step before.
          return sums_refs

        pipeline(step, context, here.steps)(*here.operands, allocations=buffers)

    plgpu.wait_smem_to_gmem(0)

  return plgpu.kernel(
    body,
    out_type=[jax.ShapeDtypeStruct(shape, dtype) for shape in shapes],
    grid=(_processors(),),
    grid_names=('processor',),
    num_threads=3,
    thread_name='group',
    kernel_name=name,
    compiler_params=plgpu.CompilerParams(
      lowering_semantics=plgpu.LoweringSemantics.Warpgroup
    ),
  )(*inputs)
