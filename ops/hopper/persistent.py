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

from ops.hopper import memory as memory_lib
from ops.hopper import warp_groups
from ops.hopper.warp_groups import GROUPS, HALF, PATTERN

COLUMNS = 256  # Of a tile. Sums of 64 x 256 fill half of a group's registers.
STEP = 64  # Of a sum.
_STAGES = 4  # Steps in flight: 192 of 227 KiB.
_CLUSTERS = True  # Whether programs may go in pairs; interpreted ones cannot.


class Tile(NamedTuple):
  """What a program computes.

  Attributes:
    operands: references to what is summed over, as long as the sum; of a
      `Block` in parts a sequence of `Source`.
    steps: of the sum, one at least.
    store: (sums of this warp group, `Memory`) writes the result.
    extras: what `store` reads: groups of [ROWS, STEP] references, at most one
      for each operand.
    less: whether some sums are not wanted, and what multiplies then.
  """

  operands: Sequence[Any]
  steps: int | jax.Array
  store: Callable[..., None]
  extras: Sequence[Sequence[Any]] = ()
  less: tuple[jax.Array, Callable[..., None]] | None = None


class Source(NamedTuple):
  """Where a block, or a part of it, is read.

  Attributes:
    ref: to that.
    shared: whether both tiles of a pair read it, to the same place.
  """

  ref: Any
  shared: bool | jax.Array


class Block(NamedTuple):
  """What a step reads of an operand.

  Attributes:
    shape: of it.
    axis: of the operand along which steps go.
    shared: whether the tiles of a pair read the same.
    parts: equal ones, one below the other, each from its own source.
  """

  shape: tuple[int, int]
  axis: int
  shared: bool = False
  parts: int = 1

  def sources(self, operand: Any) -> Sequence[Source]:
    """Of each part."""
    return operand if self.parts > 1 else [Source(operand, self.shared)]


def launch(
  kernel,
  multiply,
  name,
  inputs,
  outputs=(),
  *,
  blocks,
  sums,
  pair,
  changed=None,
):
  """Runs a kernel.

  Args:
    kernel: of references to inputs and outputs: a function that gives the
      `Tile` of an index, the place in a pair and a warp group, and the number
      of indices.
    multiply: (warp group, blocks, sums) issues the products of a step.
    name: of the kernel.
    inputs: arrays; the last has the type of all operands and extras.
    outputs: their shapes and types; `Memory.write` takes those of that type.
    blocks: the `Block` of each operand.
    sums: columns of each.
    pair: tiles of an index, 1 or 2; those of two run side by side.
    changed: a `jax.Ref`, instead of outputs: what `Memory.write` takes then.
  """
  dtype = inputs[-1].dtype
  written = dtype if changed is None else changed.dtype
  paired = pair == 2 and _CLUSTERS

  def body(*refs):
    tile_of, indices = kernel(*refs)

    def tile_at(index, group):
      if paired:
        return tile_of(index, lax.axis_index('pair'), group)
      return tile_of(*warp_groups.divide(index, pair), group)

    @functools.partial(  # type: ignore[call-arg]
      pl.run_scoped,
      **_scratch(blocks, dtype, written, paired),
      collective_axes='group',
    )
    def _(buffers, full, empty, parts_ref):
      group = lax.axis_index('group')
      ring = _Ring(buffers, full, empty, _copies(blocks), paired)
      walk = functools.partial(
        plgpu.nd_loop,
        (indices if paired else indices * pair,),
        collective_axes='processor',
        init_carry=np.int32(0),  # Stages so far.
      )

      @pl.when(group == GROUPS)
      def _():
        plgpu.set_max_registers(warp_groups.LOADING, action='decrease')
        load = lambda info, carry: _load(
          ring, blocks, tile_at(info.index[0], 0), carry
        )
        ring.drain(walk()(load))  # type: ignore[arg-type]

      @pl.when(group < GROUPS)
      def _():
        plgpu.set_max_registers(warp_groups.COMPUTING, action='increase')

        def compute(info, carry):
          tile = tile_at(info.index[0], group)
          memory = memory_lib.Memory(ring, group, parts_ref, carry + tile.steps)
          _compute(tile, ring, memory, multiply, sums, carry)
          return carry + tile.steps + len(tile.extras)

        walk()(compute)  # type: ignore[arg-type]
        plgpu.wait_smem_to_gmem(0)

  return _run(body, name, inputs, outputs, changed, paired)


def _run(body, name, inputs, outputs, changed, paired):
  """The kernel, on all processors; see `launch`."""
  grid: dict[str, Any] = {
    'grid': (processors() // (1 + paired),),
    'grid_names': ('processor',),
    'num_threads': GROUPS + 1,
    'thread_name': 'group',
    'cluster': (2,) if paired else (),
    'cluster_names': ('pair',) if paired else (),
    'kernel_name': name,
  }
  params = plgpu.CompilerParams(
    lowering_semantics=plgpu.LoweringSemantics.Warpgroup
  )
  if changed is None:
    run = plgpu.kernel(body, out_type=outputs, compiler_params=params, **grid)
    return run(*inputs)
  # The same, but for vmap, which takes no reference.
  return pl.kernel(
    body, mesh=plgpu.Mesh(**grid), compiler_params=params, name=name
  )(*inputs, changed)


def _scratch(blocks, dtype, written, paired):
  """Shared memory of a program, and its barriers."""
  empty: dict[str, Any] = {'num_arrivals': GROUPS, 'num_barriers': _STAGES}
  columns = memory_lib.columns(written)
  part = GROUPS, memory_lib.SLOTS, HALF, columns
  pattern = plgpu.TilingTransform((8, columns)), PATTERN[1]
  return {
    'buffers': [
      plgpu.SMEM((_STAGES, *block.shape), dtype, transforms=PATTERN)
      for block in blocks
    ],
    'full': plgpu.Barrier(num_arrivals=_copies(blocks), num_barriers=_STAGES),
    'empty': plgpu.ClusterBarrier(collective_axes=('pair',), **empty)
    if paired
    else plgpu.Barrier(**empty),
    'parts_ref': plgpu.SMEM(part, written, transforms=pattern),
  }


def _copies(blocks):
  """That fill a stage."""
  return sum(block.parts for block in blocks)


class _Ring(NamedTuple):
  """Stages between the group that loads and those that multiply.

  Stages are counted from the start of the program, across tiles.

  Attributes:
    buffers: of each operand, [_STAGES, *block].
    full: a barrier for each stage, of all copies into it.
    empty: likewise, of all groups that have read it.
    copies: that fill a stage.
    paired: whether the two programs of a pair load for each other.
  """

  buffers: Sequence[Any]
  full: Any
  empty: Any
  copies: int
  paired: bool

  def fill(self, number, sources):
    """Loads a stage: a sequence of `Source` for each buffer."""
    stage = lax.rem(number, _STAGES)
    full = self.full.at[stage]

    @pl.when(number >= _STAGES)
    def _():
      plgpu.barrier_wait(self.empty.at[stage])

    for buffer, parts in zip(self.buffers, sources, strict=True):
      for i, part in enumerate(parts):
        target = buffer.at[stage]
        rows = part.ref.shape[0]
        if rows != target.shape[0]:
          target = target.at[pl.ds(i * rows, rows)]
        self._copy(part, target, full)
    for _rest in range(self.copies - sum(map(len, sources))):
      plgpu.barrier_arrive(full)

  def _copy(self, source, target, full):
    alone = functools.partial(plgpu.copy_gmem_to_smem, source.ref, target, full)
    together = functools.partial(alone, collective_axes=('pair',))
    if not self.paired or source.shared is False:
      alone()
    elif source.shared is True:
      together()
    else:
      lax.cond(source.shared, together, alone)

  def wait(self, number):
    """References to a stage, once it is loaded."""
    stage = lax.rem(number, _STAGES)
    plgpu.barrier_wait(self.full.at[stage])
    return [buffer.at[stage] for buffer in self.buffers]

  def release(self, number):
    """A group has read a stage."""
    plgpu.barrier_arrive(self.empty.at[lax.rem(number, _STAGES)])

  def drain(self, number):
    """Waits until all have read; a pair may not be done with its barriers."""

    @pl.loop(lax.max(number - _STAGES, 0), number)
    def _(i):
      plgpu.barrier_wait(self.empty.at[lax.rem(i, _STAGES)])


def _load(ring, blocks, tile, number):
  """Has all stages of a tile loaded; the number of stages after it."""
  operands = [
    [(source, block.axis) for source in block.sources(operand)]
    for block, operand in zip(blocks, tile.operands, strict=True)
  ]

  def step(k, number):
    part = pl.ds(k * STEP, STEP)
    at = lambda ref, axis: ref.at[part] if axis == 0 else ref.at[:, part]
    one = lambda source, axis: source._replace(ref=at(source.ref, axis))
    ring.fill(number, [[one(*each) for each in parts] for parts in operands])
    return number + 1

  number = lax.fori_loop(0, tile.steps, step, number)
  for extra in tile.extras:
    ring.fill(number, [[Source(ref, False)] for ref in extra])
    number += 1
  return number


def _compute(tile, ring, memory, multiply, sums, first):
  """Sums and stores a tile, whose stages begin with `first`."""

  def scope(*sums_refs):
    def step(multiply, k, _carry):
      multiply(memory.group, ring.wait(first + k), sums_refs)
      plgpu.wgmma_wait(len(sums))  # Those of the step before have been read.

      @pl.when(k > 0)
      def _():
        ring.release(first + k - 1)

    def walk(multiply):
      step_of = functools.partial(step, multiply)
      lax.fori_loop(0, tile.steps, step_of, None)

    if tile.less is None:
      walk(multiply)
    else:  # Around all steps: products in flight do not cross a branch.
      where, other = tile.less
      lax.cond(where, lambda: walk(other), lambda: walk(multiply))
    plgpu.wgmma_wait(0)
    ring.release(first + tile.steps - 1)
    tile.store([ref[...] for ref in sums_refs], memory)

  pl.run_scoped(scope, *(plgpu.ACC((HALF, n), jnp.float32) for n in sums))


def processors() -> int:
  """Of the GPU; of an H200, where there is none to ask."""
  return getattr(jax.devices()[0], 'core_count', 132)
