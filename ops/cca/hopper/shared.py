# SPDX-License-Identifier: Apache-2.0
"""What the kernels of `ops.cca_prologue` for Hopper GPUs share.

A program has a head and walks over a run of blocks of ROWS tokens. Two warp
groups compute, half of a block each; a third one has the copy engine fetch
tiles ahead: tokens of a block, as many tokens before or after them as a lag
asks for, and the tokens of other heads. Inputs are those of `ops.cca.hopper`.
"""

import functools
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from ops.hopper import warp_groups
from ops.hopper.warp_groups import GROUPS, HALF, PATTERN, ROWS

CHANNELS = 64, 128  # Of a head: one chunk or two.
CHUNK = 64  # Channels of a row of shared memory.
# What stages take, and matrices, beside results on their way out.
_BYTES = 6 * 2**15
# What products read is made of tiles of 8 rows, which copies begin with. With
# tiles of one row a copy may begin anywhere; of CHUNK columns, the bytes are
# the same.
_ANY_ROW = (plgpu.TilingTransform((1, CHUNK)), plgpu.SwizzleTransform(128))


def chunks(channels):
  """The channels of each row of shared memory."""
  return tuple(pl.ds(i, CHUNK) for i in range(0, channels, CHUNK))


def stages(count, channels, dtype):
  """Memory of a `Ring`: the same bytes for copies and for products."""
  shape = count, channels // CHUNK, ROWS, CHUNK
  views = (plgpu.SMEM(shape, dtype, transforms=t) for t in (_ANY_ROW, PATTERN))
  return plgpu.RefUnion(*views)


def views(memory):
  """Of `stages`: how copies write it, how products read it."""
  for_copies, for_products = memory
  return for_copies, for_products


def ring_scratch(channels, dtype, matrices=0):
  """Scratch of a `Ring`, by the name of its argument.

  Of as many stages as fit beside so many matrices of [channels, channels].
  """
  count = (_BYTES // (2 * channels) - matrices * channels) // ROWS
  arrivals = channels // CHUNK
  return {
    'memory': stages(count, channels, dtype),
    'full': plgpu.Barrier(num_arrivals=arrivals, num_barriers=count),
    'empty': plgpu.Barrier(num_arrivals=GROUPS, num_barriers=count),
  }


class Ring(NamedTuple):
  """Stages between the group that loads and those that compute.

  Attributes:
    memory: of `stages`, a tile each.
    full: a barrier for each stage, of all copies into it.
    empty: likewise, of all groups that have read it.
  """

  memory: Any
  full: Any
  empty: Any

  def _slot(self, number):
    return lax.rem(number, np.int32(self.empty.shape[0]))

  def fill(self, number, tokens_ref):
    """Has the tile `number` loaded: [ROWS, channels] of global memory."""
    slot = self._slot(number)

    @pl.when(number >= self.empty.shape[0])
    def _():
      plgpu.barrier_wait(self.empty.at[slot])

    for i, chunk in enumerate(chunks(tokens_ref.shape[-1])):
      plgpu.copy_gmem_to_smem(
        tokens_ref.at[:, chunk],
        views(self.memory)[0].at[slot, i],
        self.full.at[slot],
      )

  def wait(self, number):
    """A reference to [chunks, ROWS, CHUNK], once the tile is loaded."""
    slot = self._slot(number)
    plgpu.barrier_wait(self.full.at[slot])
    return views(self.memory)[1].at[slot]

  def release(self, number):
    """A group has read a tile."""
    plgpu.barrier_arrive(self.empty.at[self._slot(number)])

  def drain(self, number):
    """Waits until all have been read, as barriers end with programs."""

    @pl.loop(lax.max(number - self.empty.shape[0], np.int32(0)), number)
    def _(i):
      plgpu.barrier_wait(self.empty.at[self._slot(i)])


class Block:
  """Some tokens of a row of the batch.

  Attributes:
    b: index of the row.
    first: its first token.
  """

  def __init__(self, refs, index):
    self.b, self._block = warp_groups.divide(index, refs['x'].shape[1] // ROWS)
    self.first = self._block * ROWS
    self._refs = refs

  def tokens(self, name, head, shift=0):
    """[ROWS, channels] of a head, from `shift` tokens later on.

    The copy engine takes what is outside of the row for zero.
    """
    rows = pl.ds(self.first + shift, ROWS)
    return self._refs[name].at[self.b, rows, head]

  def half(self, group):
    """The tokens that a warp group has."""
    return pl.ds(self.first + group * HALF, HALF)

  def cut(self, lag):
    """Whether a token does not see that of `lag` before or after; or None."""
    if 'hidden' not in self._refs or not lag:
      return None
    return self._refs['cut'][lag - 1, self.b, self._block] == 1

  def hide(self, group, tile_ref, lag):
    """Zeroes the rows of a loaded tile that are not seen at `lag`."""
    mine_ref = tile_ref.at[:, pl.ds(group * HALF, HALF)]
    hidden = self._refs['hidden'].at[lag - 1, self.b, self.half(group)]
    hidden = warp_groups.spread(warp_groups.load(hidden), (HALF, CHUNK), 0)
    for i in range(tile_ref.shape[0]):
      value = mine_ref.at[i][...].astype(jnp.float32)
      value = jnp.where(hidden == 1, 0.0, value)
      mine_ref.at[i][...] = value.astype(tile_ref.dtype)
    plgpu.commit_smem()


def launch(load, compute, name, inputs, results, scratch, grid):
  """Runs a kernel.

  Args:
    load: (references by name, scratch) has tiles fetched.
    compute: (references, scratch, warp group) does the rest.
    name: of the kernel.
    inputs: arrays by name.
    results: shapes by name, other than those of inputs.
    scratch: shared memory and barriers by name.
    grid: programs along each axis, by name.
  """

  def kernel(*refs):
    refs = dict(zip([*inputs, *results], refs, strict=True))
    group = lax.axis_index('group')

    @functools.partial(pl.run_scoped, **scratch, collective_axes='group')  # type: ignore[call-arg]
    def _(**scratch):
      @pl.when(group == GROUPS)
      def _():
        plgpu.set_max_registers(warp_groups.LOADING, action='decrease')
        load(refs, scratch)

      @pl.when(group < GROUPS)
      def _():
        plgpu.set_max_registers(warp_groups.COMPUTING, action='increase')
        compute(refs, scratch, group)
        plgpu.wait_smem_to_gmem(0)

  out = plgpu.kernel(
    kernel,
    out_type=[*results.values()],
    grid=tuple(grid.values()),
    grid_names=tuple(grid),
    num_threads=GROUPS + 1,
    thread_name='group',
    kernel_name=name,
    compiler_params=plgpu.CompilerParams(
      approx_math=True,
      reduction_scratch_bytes=0,  # Rows are summed without it.
      lowering_semantics=plgpu.LoweringSemantics.Warpgroup,
    ),
  )(*inputs.values())
  return dict(zip(results, out, strict=True))


def ring_of(scratch):
  """The `Ring` in the scratch of a kernel."""
  return Ring(*(scratch[name] for name in Ring._fields))
