# SPDX-License-Identifier: Apache-2.0
"""What the kernels of attention for Hopper GPUs share.

A program has a block of ROWS queries or keys, half of it in each of two warp
groups that compute, and walks over blocks of the other side, which a third one
has the copy engine fetch ahead.
"""

import functools

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from ops.hopper.warp_groups import (
  BY_COLUMN,
  BY_ROW,
  GROUPS,
  HALF,
  LOG2_E,
  PATTERN,
  ROWS,
  divide,
  load,
  spread,
)

CHANNELS = 64, 128  # Of a head: one row of shared memory, or two.


def full(shape, value, layout=plgpu.Layout.WGMMA):
  """Float32 numbers in registers."""
  return plgpu.layout_cast(jnp.full(shape, value, jnp.float32), layout)


def tiles(dtype, *shape):
  """Shared memory that products read and copies fill."""
  return plgpu.SMEM(shape, dtype, transforms=PATTERN)


def pairs(length: int) -> int:
  """Pairs of a block of queries and one of keys at or before it."""
  blocks = length // ROWS
  return blocks * (blocks + 1) // 2


def pair(queries, keys):
  """Index of such a pair."""
  return lax.div(queries * (queries + 1), np.int32(2)) + keys


class Program:
  """Where a program stands, and what it must look at.

  Attributes:
    b: index of the sequence.
    kv: of the key head.
    channels: of a head.
    scale: of scores.
    exponent: likewise, for exponentials to the base 2.
    block: of its rows.
    group: of the warp group: 0 and 1 compute, 2 loads.
    start: first block of the other side.
    stop: behind the last one.
  """

  def __init__(self, side, inputs, blocks, share):
    self.group = lax.axis_index('group')
    self.channels = inputs['q'].shape[-1]
    self.scale = self.channels**-0.5
    self.exponent = self.scale * LOG2_E
    self.kv, self.share = divide(lax.axis_index('head'), share)
    place = inputs[f'{side}_order'][lax.axis_index('place')]
    self.b, self.block = divide(place, blocks)
    bounds = inputs[f'{side}_bounds']
    b = self.b if bounds.shape[0] > 1 else 0
    self.start, self._full_start, self._full_stop, self.stop = (
      bounds[b, self.block, i] for i in range(4)
    )
    self._side, self._inputs = side, inputs
    if 'alone' in inputs:
      self._alone = inputs['alone'][self.b, self.block] == 1

  def own(self):
    """Segment of each row of this warp group, or None."""
    name = f'{self._side}_segments'
    if name not in self._inputs:
      return None
    rows = pl.ds(self.first_row(), HALF)
    return load(self._inputs[name].at[self.b, rows], BY_ROW)

  def first_row(self):
    """Of this warp group."""
    return self.block * ROWS + self.group * HALF

  def mask(self, scores, n, first, own, other_ref):
    """Scores, -inf where the key is not visible.

    Args:
      scores: [HALF, columns].
      n: block of the other side.
      first: row of the other side in the first column.
      own: see `own`.
      other_ref: [columns], segment of each, in shared memory; None if `own` is.
    """
    some = (n < self._full_start) | (n >= self._full_stop)
    hide = functools.partial(self._hide_by_row, first)
    scores = lax.cond(some, hide, lambda x: x, scores)
    if own is None:
      return scores
    # A block of one segment sees itself as if there were no segments.
    some &= ~(self._alone & (n == self.block))
    hide = functools.partial(_hide_by_segment, own, other_ref)
    return lax.cond(some, hide, lambda x: x, scores)

  def _hide_by_row(self, first, scores):
    """Hides later keys and those behind the window."""
    row = plgpu.layout_cast(lax.iota(jnp.int32, HALF), BY_ROW)
    # Opaque, or all differences are kept in registers from the start.
    row = lax.optimization_barrier(row + (self.first_row() - first))
    distance = spread(row, scores.shape, 0) - plgpu.broadcasted_iota(
      jnp.int32, scores.shape, 1, layout=plgpu.Layout.WGMMA
    )
    if self._side == 'k':
      distance = -distance
    scores = jnp.where(distance < 0, -jnp.inf, scores)
    if 'window' in self._inputs:
      behind = distance >= self._inputs['window'][0]
      scores = jnp.where(behind, -jnp.inf, scores)
    return scores


def _hide_by_segment(own, other_ref, scores):
  """Hides what has another segment."""
  other = plgpu.layout_cast(other_ref[...], BY_COLUMN)
  own, other = (
    spread(x, scores.shape, axis) for axis, x in enumerate((own, other))
  )
  return jnp.where(own != other, -jnp.inf, scores)


def launch(body, name, inputs, results, scratch, *, side, turns):
  """Runs a kernel.

  Args:
    body: (`Program`, references to inputs, to results, scratch).
    name: of the kernel.
    inputs: arrays by name.
    results: shapes by name.
    scratch: shared memory and barriers by name.
    side: 'q' or 'k', whose blocks the programs have.
    turns: query heads that a program looks at, a divisor of a group.
  """
  batch, length, heads, _ = inputs['q'].shape
  kv_heads, blocks = inputs['k'].shape[2], length // ROWS
  share = heads // kv_heads // turns  # Programs for a key head.

  def kernel(*refs):
    refs_in = dict(zip(inputs, refs, strict=False))
    refs_out = dict(zip(results, refs[len(inputs) :], strict=True))

    @functools.partial(pl.run_scoped, **scratch, collective_axes='group')  # type: ignore[call-arg]
    def _(**scratch):
      at = Program(side, refs_in, blocks, share)
      body(at, refs_in, refs_out, scratch)

  out = plgpu.kernel(
    kernel,
    out_type=[*results.values()],
    # The last changes first: heads that read the same keys run side by side.
    grid=(batch * blocks, kv_heads * share),
    grid_names=('place', 'head'),
    num_threads=GROUPS + 1,
    thread_name='group',
    kernel_name=name,
    compiler_params=plgpu.CompilerParams(
      approx_math=True, lowering_semantics=plgpu.LoweringSemantics.Warpgroup
    ),
  )(*inputs.values())
  return dict(zip(results, out, strict=True))


def store(sums_ref, value):
  """Sets the sums of products."""
  sums_ref[...] = value


def slot_of(count, stages):
  """The stage that the number `count` goes through."""
  return lax.rem(count, np.int32(stages))


def drain(empty, count, stages):
  """Waits for the readers of the last stages, as barriers end with programs."""

  @pl.loop(lax.max(count - np.int32(stages), np.int32(0)), count)
  def _(i):
    plgpu.barrier_wait(empty.at[slot_of(i, stages)])
