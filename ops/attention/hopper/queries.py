# SPDX-License-Identifier: Apache-2.0
"""Attention for Hopper GPUs: the kernels of the gradients of queries.

One computes the scores anew; the other one reads their gradients.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from ops.attention.hopper import shared
from ops.hopper import warp_groups
from ops.hopper.warp_groups import GROUPS, HALF, ROWS

_COLUMNS = 64  # Keys of a step.
_STAGES = 4  # Such blocks in flight.
_SAVED_STAGES = 3  # Blocks of ROWS keys in flight, where scores were saved.


# Kernels of the same shape are made once: each takes a second to compile.
@functools.partial(jax.jit, static_argnames='turns')
def of_queries(inputs: dict[str, jax.Array], turns: int) -> jax.Array:
  """Gradient of the queries; see `forward`."""
  q, channels = inputs['q'], inputs['q'].shape[-1]
  many = functools.partial(plgpu.Barrier, num_barriers=_STAGES)
  segments = 'k_segments' in inputs
  scratch = {
    'q': shared.tiles(q.dtype, GROUPS, HALF, channels),
    'd_out': shared.tiles(q.dtype, GROUPS, HALF, channels),
    'k': shared.tiles(q.dtype, _STAGES, _COLUMNS, channels),
    'v': shared.tiles(q.dtype, _STAGES, _COLUMNS, channels),
    'full': plgpu.Barrier(num_arrivals=2, num_barriers=GROUPS),
    'k_full': many(num_arrivals=1 + segments),
    'v_full': many(),
    'empty': many(num_arrivals=GROUPS),
  }
  if segments:
    scratch['segments'] = plgpu.SMEM((_STAGES, _COLUMNS), jnp.int32)
  compute = lambda at, refs, out_refs, scratch: functools.partial(
    _of_queries, at, refs, out_refs, scratch, at.own()
  )
  name = 'attention_of_queries'
  return _launch(name, inputs, scratch, turns, _STAGES, _load_keys, compute)


def _load_keys(at, refs, scratch, head, count):
  """Has the keys and values of a head's queries fetched."""
  del head

  def step(n, count):
    slot = shared.slot_of(count, _STAGES)

    @pl.when(count >= _STAGES)
    def _():
      plgpu.barrier_wait(scratch['empty'].at[slot])

    rows = pl.ds(n * _COLUMNS, _COLUMNS)
    for name in 'kv':
      plgpu.copy_gmem_to_smem(
        refs[name].at[at.b, rows, at.kv],
        scratch[name].at[slot],
        scratch[f'{name}_full'].at[slot],
      )
    if 'segments' in scratch:
      plgpu.copy_gmem_to_smem(
        refs['k_segments'].at[at.b, rows],
        scratch['segments'].at[slot],
        scratch['k_full'].at[slot],
      )
    return count + 1

  parts = ROWS // _COLUMNS
  return lax.fori_loop(at.start * parts, at.stop * parts, step, count)


def _of_queries(at, refs, out_refs, scratch, own, head, count):
  """Gradient of half a block of a head."""
  rows = pl.ds(at.first_row(), HALF)
  q_ref, d_out_ref = (scratch[n].at[at.group] for n in ('q', 'd_out'))
  plgpu.wait_smem_to_gmem(0, wait_read_only=True)  # Of the head before.
  for name, ref in (('q', q_ref), ('d_out', d_out_ref)):
    plgpu.copy_gmem_to_smem(
      refs[name].at[at.b, rows, head], ref, scratch['full'].at[at.group]
    )
  shape = HALF, _COLUMNS
  lse, delta = (
    warp_groups.load(refs[name].at[at.b, head, rows], warp_groups.BY_ROW)
    for name in ('lse', 'delta')
  )
  parts = ROWS // _COLUMNS
  first = at.start * parts

  def step(i, _, d_q_ref):
    number = count + i - first
    slot = shared.slot_of(number, _STAGES)
    k_ref, v_ref = scratch['k'].at[slot], scratch['v'].at[slot]

    def scope(scores_ref, slopes_ref):
      plgpu.barrier_wait(scratch['k_full'].at[slot])
      plgpu.wgmma(scores_ref, q_ref, k_ref.transpose((1, 0)))
      plgpu.barrier_wait(scratch['v_full'].at[slot])
      plgpu.wgmma(slopes_ref, d_out_ref, v_ref.transpose((1, 0)))
      scores = plgpu.wgmma_accumulator_load(scores_ref, wait_n=1)

      # The product of the step before is done, too.
      @pl.when(i > first)
      def _():
        before = shared.slot_of(number - 1, _STAGES)
        plgpu.barrier_arrive(scratch['empty'].at[before])

      n = lax.div(i, np.int32(parts))
      segments = None if own is None else scratch['segments'].at[slot]
      scores = at.mask(scores, n, i * _COLUMNS, own, segments)
      if segments is not None:
        warp_groups.finish_reads()
      weights = jnp.exp2(
        scores * at.exponent - warp_groups.spread(lse, shape, 0)
      )
      slopes = plgpu.wgmma_accumulator_load(slopes_ref, wait_n=0)
      d_scores = weights * (slopes - warp_groups.spread(delta, shape, 0))
      plgpu.wgmma(d_q_ref, d_scores.astype(scratch['k'].dtype), k_ref)

    sums = plgpu.ACC(shape, jnp.float32)
    pl.run_scoped(scope, sums, sums)

  def scope(d_q_ref):
    plgpu.barrier_wait(scratch['full'].at[at.group])
    body = functools.partial(step, d_q_ref=d_q_ref)
    lax.fori_loop(first, at.stop * parts, body, None)
    return d_q_ref[...]

  d_q = pl.run_scoped(scope, plgpu.ACC((HALF, at.channels), jnp.float32))
  number = count + at.stop * parts - first

  @pl.when(number > count)
  def _():
    last = shared.slot_of(number - 1, _STAGES)
    plgpu.barrier_arrive(scratch['empty'].at[last])

  q_ref[...] = (d_q * at.scale).astype(q_ref.dtype)
  plgpu.commit_smem()
  plgpu.copy_smem_to_gmem(q_ref, out_refs['q'].at[at.b, rows, head])
  return number


@functools.partial(jax.jit, static_argnames='turns')
def of_queries_saved(
  inputs: dict[str, jax.Array], d_scores: jax.Array, turns: int
) -> jax.Array:
  """Gradient of the queries, of what `of_keys` saved."""
  q, channels = inputs['q'], inputs['q'].shape[-1]
  names = 'q', 'k', 'q_bounds', 'q_order'
  inputs = {n: inputs[n] for n in names} | {'d_scores': d_scores}
  many = functools.partial(plgpu.Barrier, num_barriers=_SAVED_STAGES)
  scratch = {
    'd_scores': shared.tiles(q.dtype, _SAVED_STAGES, ROWS, ROWS),
    'k': shared.tiles(q.dtype, _SAVED_STAGES, ROWS, channels),
    'd_q': shared.tiles(q.dtype, GROUPS, HALF, channels),
    'full': many(num_arrivals=2),
    'empty': many(num_arrivals=GROUPS),
  }
  compute = lambda at, refs, out_refs, scratch: functools.partial(
    _of_saved, at, out_refs, scratch
  )
  name = 'attention_of_queries_saved'
  return _launch(
    name, inputs, scratch, turns, _SAVED_STAGES, _load_saved, compute
  )


def _load_saved(at, refs, scratch, head, count):
  """Has what a head's queries need fetched."""

  def step(n, count):
    slot = shared.slot_of(count, _SAVED_STAGES)

    @pl.when(count >= _SAVED_STAGES)
    def _():
      plgpu.barrier_wait(scratch['empty'].at[slot])

    full = scratch['full'].at[slot]
    plgpu.copy_gmem_to_smem(
      refs['d_scores'].at[at.b, head, shared.pair(at.block, n)],
      scratch['d_scores'].at[slot],
      full,
    )
    plgpu.copy_gmem_to_smem(
      refs['k'].at[at.b, pl.ds(n * ROWS, ROWS), at.kv],
      scratch['k'].at[slot],
      full,
    )
    return count + 1

  return lax.fori_loop(at.start, at.stop, step, count)


def _of_saved(at, out_refs, scratch, head, count):
  """Gradient of half a block of a head."""
  columns = pl.ds(at.group * HALF, HALF)
  release = lambda number: plgpu.barrier_arrive(
    scratch['empty'].at[shared.slot_of(number, _SAVED_STAGES)]
  )

  def scope(d_q_ref):
    def step(n, number):
      slot = shared.slot_of(number, _SAVED_STAGES)
      plgpu.barrier_wait(scratch['full'].at[slot])
      d_scores = scratch['d_scores'].at[slot, :, columns].transpose((1, 0))
      plgpu.wgmma(d_q_ref, d_scores, scratch['k'].at[slot])
      plgpu.wgmma_wait(1)
      pl.when(n > at.start)(lambda: release(number - 1))
      return number + 1

    number = lax.fori_loop(at.start, at.stop, step, count)
    plgpu.wgmma_wait(0)
    pl.when(number > count)(lambda: release(number - 1))
    return d_q_ref[...], number

  d_q, number = pl.run_scoped(
    scope, plgpu.ACC((HALF, at.channels), jnp.float32)
  )
  ref = scratch['d_q'].at[at.group]
  plgpu.wait_smem_to_gmem(0, wait_read_only=True)
  ref[...] = (d_q * at.scale).astype(ref.dtype)
  plgpu.commit_smem()
  rows = pl.ds(at.first_row(), HALF)
  plgpu.copy_smem_to_gmem(ref, out_refs['q'].at[at.b, rows, head])
  return number


def _launch(name, inputs, scratch, turns, stages, load, compute):
  """A kernel whose programs go through some heads of a block of queries.

  Args:
    name: of the kernel.
    inputs: of `ops.attention.hopper`.
    scratch: of `shared.launch`.
    turns: heads of a program.
    stages: in flight.
    load: (program, inputs, scratch, head, stages so far) has what a head needs
      fetched; the stages then.
    compute: (program, inputs, results, scratch) gives a function of the head
      and the stages so far, which does the same for a warp group that computes.
  """
  q = inputs['q']
  share = q.shape[2] // inputs['k'].shape[2]

  def body(at, refs, out_refs, scratch):
    first_head = at.kv * share + at.share * turns
    walk = lambda head: lax.fori_loop(
      np.int32(0),
      np.int32(turns),
      lambda i, count: head(first_head + i, count),
      np.int32(0),
    )

    @pl.when(at.group == GROUPS)
    def _():
      plgpu.set_max_registers(warp_groups.LOADING, action='decrease')
      count = walk(functools.partial(load, at, refs, scratch))
      shared.drain(scratch['empty'], count, stages)

    @pl.when(at.group < GROUPS)
    def _():
      plgpu.set_max_registers(warp_groups.COMPUTING, action='increase')
      walk(compute(at, refs, out_refs, scratch))
      plgpu.wait_smem_to_gmem(0)

  results = {'q': jax.ShapeDtypeStruct(q.shape, q.dtype)}
  return shared.launch(
    body, name, inputs, results, scratch, side='q', turns=turns
  )['q']
