# SPDX-License-Identifier: Apache-2.0
"""Persistent kernels for Hopper GPUs: sums of products, a tile after another.

As many programs as the chip has processors walk over the tiles of the result.
In each, one warp group has the copy engine fetch what comes next, also of the
next tile, while two multiply: what Triton's kernels lose at the ends of a tile
is hidden (docs/performance.md). Programs may go in pairs, a tile each, that
fetch halves of an operand that both tiles need. By Pallas for JAX's Mosaic GPU.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from ops import dispatch

HALF = 64  # Rows of a tile that each of two warp groups has.
ROWS = 2 * HALF  # Of a tile.
COLUMNS = 256  # Of a tile. Sums of 64 x 256 fill half of a group's registers.
STEP = 64  # Of a sum: 128 bytes, the widest pattern without bank conflicts.
_GROUPS = 2  # That multiply; one more loads.
_STAGES = 4  # Steps in flight: 192 of 227 KiB.
_SLOTS = 2  # Parts of a result on their way out.
_CLUSTERS = True  # Whether programs may go in pairs; interpreted ones cannot.
_PATTERN = (plgpu.TilingTransform((8, STEP)), plgpu.SwizzleTransform(128))


class Tile(NamedTuple):
  """What a program computes.

  Attributes:
    operands: references to what is summed over, as long as the sum.
    steps: of the sum, one at least.
    store: (sums of this warp group, write, read) writes the result, where
      write(value [HALF, STEP], reference, turned=False, when=True) takes a part
      of it or its transpose, and read() gives this group's rows of the next
      `extras`.
    extras: what `store` reads: groups of [ROWS, STEP] references, at most one
      for each operand.
  """

  operands: Sequence[Any]
  steps: int | jax.Array
  store: Callable[..., None]
  extras: Sequence[Sequence[Any]] = ()


class Block(NamedTuple):
  """What a step reads of an operand.

  Attributes:
    shape: of it.
    axis: of the operand along which steps go.
    shared: whether the tiles of a pair read the same.
  """

  shape: tuple[int, int]
  axis: int
  shared: bool = False


def unavailable() -> str | None:
  """Why such kernels cannot run on this machine."""
  if dispatch.platform() != 'cuda':
    return 'is made of instructions of Hopper GPUs'
  found = getattr(jax.devices()[0], 'compute_capability', 'none')
  if found.split('.')[0] != '9':
    return f'needs compute capability 9, a Hopper GPU; this one has {found}'
  return None


def launch(kernel, multiply, name, inputs, shapes, *, blocks, sums, pair):
  """Runs a kernel.

  Args:
    kernel: of references to inputs and outputs: a function that gives the
      `Tile` of an index, the place in a pair and a warp group, and the number
      of indices.
    multiply: (warp group, blocks, sums) issues the products of a step.
    name: of the kernel.
    inputs: arrays.
    shapes: of the outputs, which have the type of the last input.
    blocks: the `Block` of each operand.
    sums: columns of each.
    pair: tiles of an index, 1 or 2; those of two run side by side.
  """
  dtype = inputs[-1].dtype
  paired = pair == 2 and _CLUSTERS

  def body(*refs):
    tile_of, indices = kernel(*refs)
    empty = {'num_arrivals': _GROUPS, 'num_barriers': _STAGES}

    def at(index, group):
      """The tile that is due."""
      if paired:
        return tile_of(index, lax.axis_index('pair'), group)
      return tile_of(
        lax.div(index, np.int32(pair)), lax.rem(index, np.int32(pair)), group
      )

    @functools.partial(
      pl.run_scoped,
      buffers=[
        plgpu.SMEM((_STAGES, *block.shape), dtype, transforms=_PATTERN)
        for block in blocks
      ],
      full=plgpu.Barrier(num_arrivals=len(blocks), num_barriers=_STAGES),
      empty=plgpu.ClusterBarrier(collective_axes=('pair',), **empty)
      if paired
      else plgpu.Barrier(**empty),
      out_ref=plgpu.SMEM(
        (_GROUPS, _SLOTS, HALF, STEP), dtype, transforms=_PATTERN
      ),
      collective_axes='group',
    )
    def _(buffers, full, empty, out_ref):
      group = lax.axis_index('group')
      walk = functools.partial(
        plgpu.nd_loop,
        (indices if paired else indices * pair,),
        collective_axes='processor',
        init_carry=np.int32(0),  # Stages so far.
      )

      def load(number, sources):
        """Fills a stage: references, and whether a pair shares them."""
        stage = lax.rem(number, _STAGES)

        @pl.when(number >= _STAGES)
        def _():
          plgpu.barrier_wait(empty.at[stage])

        for buffer, (source, shared) in zip(buffers, sources, strict=True):
          target = buffer.at[stage]
          if source.shape != target.shape:
            target = target.at[pl.ds(0, source.shape[0])]
          plgpu.copy_gmem_to_smem(
            source,
            target,
            full.at[stage],
            collective_axes=('pair',) if shared and paired else None,
          )

      @pl.when(group == _GROUPS)
      def _():
        plgpu.set_max_registers(40, action='decrease')

        def tile(info, carry):
          here = at(info.index[0], 0)

          def step(k, number):
            part = pl.ds(k * STEP, STEP)
            sources = [
              (
                ref.at[part] if block.axis == 0 else ref.at[:, part],
                block.shared,
              )
              for ref, block in zip(here.operands, blocks, strict=True)
            ]
            load(number, sources)
            return number + 1

          number = lax.fori_loop(0, here.steps, step, carry)
          for extra in here.extras:
            load(number, [(ref, False) for ref in extra])
            number += 1
          return number

        number = walk()(tile)

        # The other one of a pair may not be done with this one's barriers.
        @pl.loop(lax.max(number - _STAGES, 0), number)
        def _(i):
          plgpu.barrier_wait(empty.at[lax.rem(i, _STAGES)])

      @pl.when(group < _GROUPS)
      def _():
        plgpu.set_max_registers(232, action='increase')
        release = lambda number: plgpu.barrier_arrive(
          empty.at[lax.rem(number, _STAGES)]
        )

        def tile(info, carry):
          here = at(info.index[0], group)
          turn, reads = 0, 0

          def write(value, target_ref, *, turned=False, when=True):
            nonlocal turn
            part_ref = out_ref.at[group, turn % _SLOTS]
            turn += 1
            plgpu.wait_smem_to_gmem(_SLOTS - 1, wait_read_only=True)

            def store():
              part = value.astype(dtype)
              if turned:
                part = plgpu.layout_cast(part, plgpu.Layout.WGMMA_TRANSPOSED)
                part_ref.transpose((1, 0))[...] = part
              else:
                part_ref[...] = part
              plgpu.commit_smem()
              plgpu.copy_smem_to_gmem(part_ref, target_ref)

            if when is True:
              store()
            else:  # Nothing counts as a store, so that waiting goes on to work.
              lax.cond(when, store, plgpu.commit_smem_to_gmem_group)

          def read():
            nonlocal reads
            number = carry + here.steps + reads
            stage = lax.rem(number, _STAGES)
            plgpu.barrier_wait(full.at[stage])
            mine = pl.ds(group * HALF, HALF)
            values = [buffer.at[stage, mine][...] for buffer in buffers]
            release(number)
            reads += 1
            return values

          def scope(*sums_refs):
            def step(k, _):
              stage = lax.rem(carry + k, _STAGES)
              plgpu.barrier_wait(full.at[stage])
              multiply(
                group, [buffer.at[stage] for buffer in buffers], sums_refs
              )
              # Those of the step before have been read.
              plgpu.wgmma_wait(len(sums))

              @pl.when(k > 0)
              def _():
                release(carry + k - 1)

            lax.fori_loop(0, here.steps, step, None)
            plgpu.wgmma_wait(0)
            release(carry + here.steps - 1)
            here.store([ref[...] for ref in sums_refs], write, read)

          pl.run_scoped(
            scope, *(plgpu.ACC((HALF, n), jnp.float32) for n in sums)
          )
          return carry + here.steps + len(here.extras)

        walk()(tile)
        plgpu.wait_smem_to_gmem(0)

  cluster = {'cluster': (2,), 'cluster_names': ('pair',)} if paired else {}
  return plgpu.kernel(
    body,
    out_type=[jax.ShapeDtypeStruct(shape, dtype) for shape in shapes],
    grid=(_processors() // (1 + paired),),
    grid_names=('processor',),
    num_threads=_GROUPS + 1,
    thread_name='group',
    kernel_name=name,
    compiler_params=plgpu.CompilerParams(
      lowering_semantics=plgpu.LoweringSemantics.Warpgroup
    ),
    **cluster,
  )(*inputs)


def _processors() -> int:
  """Of the GPU; of an H200, where there is none to ask."""
  return getattr(jax.devices()[0], 'core_count', 132)
