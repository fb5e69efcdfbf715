# SPDX-License-Identifier: Apache-2.0
"""Persistent kernels for Hopper GPUs: sums of products, a tile after another.

As many programs as the chip has processors walk over the tiles of the result.
In each, one warp group has the copy engine fetch what comes next, also of the
next tile, while two multiply: what Triton's kernels lose at the ends of a tile
is hidden (docs/performance.md). By Pallas for JAX's Mosaic GPU.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

HALF = 64  # Rows of a tile that each of two warp groups has.
STEP = 64  # Of a sum: 128 bytes, the widest pattern without bank conflicts.
_STAGES = 4  # Steps in flight: 192 of 227 KiB.
_SLOTS = 2  # Parts of a result on their way out.
_PATTERN = (plgpu.TilingTransform((8, STEP)), plgpu.SwizzleTransform(128))


class Tile(NamedTuple):
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


def launch(kernel, multiply, name, inputs, shapes, *, blocks, sums):
  """Runs a kernel.

  Args:
    kernel: of references to inputs and outputs: a function that gives the
      `Tile` of an index and a warp group, and the number of tiles.
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
      out_ref=plgpu.SMEM((2, _SLOTS, HALF, STEP), dtype, transforms=_PATTERN),
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
            scope, *(plgpu.ACC((HALF, n), jnp.float32) for n in sums)
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


def _processors() -> int:
  """Of the GPU; of an H200, where there is none to ask."""
  return getattr(jax.devices()[0], 'core_count', 132)
