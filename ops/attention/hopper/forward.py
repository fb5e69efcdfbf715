# SPDX-License-Identifier: Apache-2.0
"""Attention for Hopper GPUs: the kernel of the results.

The two warp groups take turns: while one has its products computed, the other
has the exponentials of its weights.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from ops.attention import api
from ops.attention.hopper import shared
from ops.hopper import warp_groups
from ops.hopper.warp_groups import GROUPS, HALF, ROWS

_STAGES = 2  # Blocks of keys and of values in flight.


# Kernels of the same shape are made once: each takes a second to compile.
@functools.partial(jax.jit, static_argnames='turns')
def forward(inputs: dict[str, jax.Array], turns: int) -> dict[str, jax.Array]:
  """The results 'out' and the log-sum-exps 'lse', base 2.

  Args:
    inputs: of `ops.attention.hopper`.
    turns: query heads that a program looks at, one after another.
  """
  q = inputs['q']
  batch, length, heads, channels = q.shape
  results = {
    'out': jax.ShapeDtypeStruct(q.shape, q.dtype),
    'lse': jax.ShapeDtypeStruct((batch, heads, length), jnp.float32),
  }
  scratch = _scratch(q.dtype, channels, 'k_segments' in inputs)

  def body(at, refs, out_refs, scratch):
    first_head = at.kv * (heads // inputs['k'].shape[2] // turns) + at.share
    first_head = first_head * turns
    walk = lambda head, carry: lax.fori_loop(
      np.int32(0), np.int32(turns), lambda i, c: head(first_head + i, c), carry
    )

    @pl.when(at.group == GROUPS)
    def _():
      plgpu.set_max_registers(warp_groups.LOADING, action='decrease')
      head = functools.partial(_load_head, at, refs, scratch, first_head)
      count = walk(head, np.int32(0))
      plgpu.barrier_wait(scratch['q_empty'])
      for name in 'kv':
        shared.drain(scratch[f'{name}_empty'], count, _STAGES)

    @pl.when(at.group < GROUPS)
    def _():
      plgpu.set_max_registers(warp_groups.COMPUTING, action='increase')
      own = at.own()
      head = functools.partial(_compute_head, at, out_refs, scratch, own)
      turn = scratch['turn'].at[0]
      pl.when(at.group == 1)(lambda: plgpu.barrier_arrive(turn))
      walk(head, np.int32(0))
      pl.when(at.group == 0)(lambda: plgpu.barrier_wait(turn))
      plgpu.wait_smem_to_gmem(0)

  return shared.launch(
    body, 'attention_forward', inputs, results, scratch, side='q', turns=turns
  )


def _scratch(dtype, channels, segments):
  """Shared memory of a program, and its barriers."""
  many = functools.partial(plgpu.Barrier, num_barriers=_STAGES)
  scratch = {
    'q': shared.tiles(dtype, ROWS, channels),
    'k': shared.tiles(dtype, _STAGES, ROWS, channels),
    'v': shared.tiles(dtype, _STAGES, ROWS, channels),
    'out': shared.tiles(dtype, GROUPS, HALF, channels),
    'lse': plgpu.SMEM((GROUPS, HALF), jnp.float32),
    'q_full': plgpu.Barrier(),
    'q_empty': plgpu.Barrier(num_arrivals=GROUPS),
    'k_full': many(num_arrivals=1 + segments),
    'v_full': many(),
    'k_empty': many(num_arrivals=GROUPS),
    'v_empty': many(num_arrivals=GROUPS),
    'turn': plgpu.Barrier(num_barriers=GROUPS),
  }
  if segments:
    scratch['segments'] = plgpu.SMEM((_STAGES, ROWS), jnp.int32)
  return scratch


def _load_head(at, refs, scratch, first_head, head, count):
  """Has a head's queries and its keys and values fetched."""

  @pl.when(head > first_head)
  def _():
    plgpu.barrier_wait(scratch['q_empty'])

  rows = pl.ds(at.block * ROWS, ROWS)
  plgpu.copy_gmem_to_smem(
    refs['q'].at[at.b, rows, head], scratch['q'], scratch['q_full']
  )

  def step(n, count):
    slot = shared.slot_of(count, _STAGES)
    rows = pl.ds(n * ROWS, ROWS)
    for name in 'kv':
      full, empty = (
        scratch[f'{name}_{what}'].at[slot] for what in ('full', 'empty')
      )
      wait = functools.partial(plgpu.barrier_wait, empty)
      pl.when(count >= _STAGES)(wait)
      plgpu.copy_gmem_to_smem(
        refs[name].at[at.b, rows, at.kv], scratch[name].at[slot], full
      )
      if name == 'k' and 'segments' in scratch:
        plgpu.copy_gmem_to_smem(
          refs['k_segments'].at[at.b, rows], scratch['segments'].at[slot], full
        )
    return count + 1

  return lax.fori_loop(at.start, at.stop, step, count)


def _compute_head(at, out_refs, scratch, own, head, count):
  """Half a block's results of a head."""
  sums = plgpu.ACC((HALF, at.channels), jnp.float32)
  walk = functools.partial(_weighted_sum, at, scratch, own, count)
  plgpu.barrier_wait(scratch['q_full'])
  out, top, total = pl.run_scoped(walk, sums)
  total = jnp.maximum(total, 1e-30)  # 0 where a row sees no key.
  out *= warp_groups.spread(1 / total, out.shape, 0)
  plgpu.wait_smem_to_gmem(0, wait_read_only=True)
  scratch['out'].at[at.group][...] = out.astype(scratch['out'].dtype)
  scratch['lse'].at[at.group][...] = top + jnp.log(total) * warp_groups.LOG2_E
  plgpu.commit_smem()
  rows = pl.ds(at.first_row(), HALF)
  plgpu.copy_smem_to_gmem(
    scratch['out'].at[at.group], out_refs['out'].at[at.b, rows, head]
  )
  plgpu.copy_smem_to_gmem(
    scratch['lse'].at[at.group], out_refs['lse'].at[at.b, head, rows]
  )
  return count + at.stop - at.start


def _weighted_sum(at, scratch, own, count, out_ref):
  """Half a block's sums of values, greatest scores and sums of weights.

  The products of a step are the scores of its keys and the weighted sum of the
  values before: weights are computed while the latter is.
  """
  q_ref = scratch['q'].at[pl.ds(at.group * HALF, HALF)]
  slot_of = lambda n: shared.slot_of(count + n - at.start, _STAGES)

  def scores_of(n, before):
    """Of a block of keys; `before` is called to issue more products."""
    slot = slot_of(n)

    def scope(scores_ref):
      plgpu.barrier_wait(scratch['k_full'].at[slot])
      plgpu.barrier_wait(scratch['turn'].at[at.group])
      k_ref = scratch['k'].at[slot].transpose((1, 0))
      plgpu.wgmma(scores_ref, q_ref, k_ref)
      issued = before()
      plgpu.barrier_arrive(scratch['turn'].at[1 - at.group])
      return plgpu.wgmma_accumulator_load(scores_ref, wait_n=issued)

    scores = pl.run_scoped(scope, plgpu.ACC((HALF, ROWS), jnp.float32))
    segments = None if own is None else scratch['segments'].at[slot]
    scores = at.mask(scores, n, n * ROWS, own, segments)
    if segments is not None:
      warp_groups.finish_reads()
    plgpu.barrier_arrive(scratch['k_empty'].at[slot])
    return scores

  def weigh(scores, top, total):
    """Weights, greatest score, sum, and what sums so far shrink by."""
    new_top = jnp.maximum(top, jnp.max(scores, axis=1) * at.exponent)
    spread_top = warp_groups.spread(new_top, scores.shape, 0)
    weights = jnp.exp2(scores * at.exponent - spread_top)
    shrink = jnp.exp2(top - new_top)
    total = total * shrink + jnp.sum(weights, axis=1)
    return weights.astype(scratch['v'].dtype), new_top, total, shrink

  def add(n, weights):
    slot = slot_of(n)
    plgpu.barrier_wait(scratch['v_full'].at[slot])
    plgpu.wgmma(out_ref, weights, scratch['v'].at[slot])
    return 1

  def added(n):
    out = out_ref[...]
    plgpu.barrier_arrive(scratch['v_empty'].at[slot_of(n)])
    return out

  def step(n, carry):
    weights, top, total = carry
    scores = scores_of(n, lambda: add(n - 1, weights))
    weights, top, total, shrink = weigh(scores, top, total)
    out = added(n - 1)
    shared.store(out_ref, out * warp_groups.spread(shrink, out.shape, 0))
    return weights, top, total

  row = (HALF,)
  carry = weigh(
    scores_of(at.start, lambda: 0),
    shared.full(row, api.NOTHING, warp_groups.BY_ROW),
    shared.full(row, 0, warp_groups.BY_ROW),
  )[:3]
  carry = lax.fori_loop(at.start + 1, at.stop, step, carry)
  plgpu.barrier_arrive(scratch['q_empty'])
  weights, top, total = carry
  add(at.stop - 1, weights)
  return added(at.stop - 1), top, total
