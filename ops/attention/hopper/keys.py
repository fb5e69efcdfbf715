# SPDX-License-Identifier: Apache-2.0
"""Attention for Hopper GPUs: the kernel of the gradients of keys and values.

Scores are computed with a row for each key, so that weights and their gradients
are in registers as products with the queries' side need them.
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

_STAGES = 3  # Blocks of HALF queries in flight.


# Kernels of the same shape are made once: each takes a second to compile.
@functools.partial(jax.jit, static_argnames='save')
def of_keys(
  inputs: dict[str, jax.Array], *, save: bool
) -> dict[str, jax.Array]:
  """Gradients 'k' and 'v' and, to `save`, 'd_scores', of the inputs.

  The last are the gradients of the scores, [B, H, pairs, ROWS, ROWS], a row for
  each key; pairs that are not looked at are not written.
  """
  k = inputs['k']
  batch, length, heads, channels = inputs['q'].shape
  results = {n: jax.ShapeDtypeStruct(k.shape, k.dtype) for n in 'kv'}
  share = heads // k.shape[2]
  many = functools.partial(plgpu.Barrier, num_barriers=_STAGES)
  numbers = plgpu.SMEM((_STAGES, HALF), jnp.float32)
  segments = 'q_segments' in inputs
  scratch = {
    'k': shared.tiles(k.dtype, ROWS, channels),
    'v': shared.tiles(k.dtype, ROWS, channels),
    'q': shared.tiles(k.dtype, _STAGES, HALF, channels),
    'd_out': shared.tiles(k.dtype, _STAGES, HALF, channels),
    'lse': numbers,
    'delta': numbers,
    'kv_full': plgpu.Barrier(num_arrivals=2),
    'q_full': many(num_arrivals=2 + segments),
    'd_out_full': many(num_arrivals=2),
    'empty': many(num_arrivals=GROUPS),
  }
  if segments:
    scratch['segments'] = plgpu.SMEM((_STAGES, HALF), jnp.int32)
  if save:
    shape = batch, heads, shared.pairs(length), ROWS, ROWS
    results['d_scores'] = jax.ShapeDtypeStruct(shape, k.dtype)
    scratch['d_scores'] = shared.tiles(k.dtype, GROUPS, 2, HALF, HALF)

  def body(at, refs, out_refs, scratch):
    @pl.when(at.group == GROUPS)
    def _():
      plgpu.set_max_registers(warp_groups.LOADING, action='decrease')
      _load_queries(at, refs, scratch, share)

    @pl.when(at.group < GROUPS)
    def _():
      plgpu.set_max_registers(warp_groups.COMPUTING, action='increase')
      pl.run_scoped(
        functools.partial(_of_keys, at, out_refs, scratch, share),
        plgpu.ACC((HALF, channels), jnp.float32),
        plgpu.ACC((HALF, channels), jnp.float32),
      )

  return shared.launch(
    body, 'attention_of_keys', inputs, results, scratch, side='k', turns=share
  )


def _load_queries(at, refs, scratch, share):
  """Has a block of keys and values and what it meets fetched."""
  rows = pl.ds(at.block * ROWS, ROWS)
  for name in 'kv':
    plgpu.copy_gmem_to_smem(
      refs[name].at[at.b, rows, at.kv], scratch[name], scratch['kv_full']
    )

  def step(i, count):
    slot = shared.slot_of(count, _STAGES)

    @pl.when(count >= _STAGES)
    def _():
      plgpu.barrier_wait(scratch['empty'].at[slot])

    n, turn = warp_groups.divide(i, share)
    head, rows = at.kv * share + turn, pl.ds(n * HALF, HALF)
    for tile, number in (('q', 'lse'), ('d_out', 'delta')):
      full = scratch[f'{tile}_full'].at[slot]
      plgpu.copy_gmem_to_smem(
        refs[tile].at[at.b, rows, head], scratch[tile].at[slot], full
      )
      plgpu.copy_gmem_to_smem(
        refs[number].at[at.b, head, rows], scratch[number].at[slot], full
      )
    if 'segments' in scratch:
      plgpu.copy_gmem_to_smem(
        refs['q_segments'].at[at.b, rows],
        scratch['segments'].at[slot],
        scratch['q_full'].at[slot],
      )
    return count + 1

  steps = 2 * share
  count = lax.fori_loop(at.start * steps, at.stop * steps, step, np.int32(0))
  shared.drain(scratch['empty'], count, _STAGES)


def _of_keys(at, out_refs, scratch, share, d_k_ref, d_v_ref):
  """Gradients of half a block."""
  own = at.own()
  half = pl.ds(at.group * HALF, HALF)
  k_ref, v_ref = scratch['k'].at[half], scratch['v'].at[half]
  dtype = scratch['k'].dtype
  shape = HALF, HALF
  first = at.start * (2 * share)
  by_column = lambda name, slot: warp_groups.spread(
    plgpu.layout_cast(scratch[name].at[slot][...], warp_groups.BY_COLUMN),
    shape,
    1,
  )

  def step(i, _):
    slot = shared.slot_of(i - first, _STAGES)
    q_ref, d_out_ref = scratch['q'].at[slot], scratch['d_out'].at[slot]

    def scope(scores_ref, slopes_ref):
      plgpu.barrier_wait(scratch['q_full'].at[slot])
      plgpu.wgmma(scores_ref, k_ref, q_ref.transpose((1, 0)))
      plgpu.barrier_wait(scratch['d_out_full'].at[slot])
      plgpu.wgmma(slopes_ref, v_ref, d_out_ref.transpose((1, 0)))
      scores = plgpu.wgmma_accumulator_load(scores_ref, wait_n=1)

      # The products of the step before are done, too.
      @pl.when(i > first)
      def _():
        before = shared.slot_of(i - first - 1, _STAGES)
        plgpu.barrier_arrive(scratch['empty'].at[before])

      segments = None if own is None else scratch['segments'].at[slot]
      n, _ = warp_groups.divide(i, share)
      block = lax.div(n, np.int32(2))
      scores = at.mask(scores, block, n * HALF, own, segments)
      weights = jnp.exp2(scores * at.exponent - by_column('lse', slot))
      plgpu.wgmma(d_v_ref, weights.astype(dtype), d_out_ref)
      slopes = plgpu.wgmma_accumulator_load(slopes_ref, wait_n=1)
      d_scores = weights * (slopes - by_column('delta', slot))
      d_scores = d_scores.astype(dtype)
      plgpu.wgmma(d_k_ref, d_scores, q_ref)
      if 'd_scores' in out_refs:
        _save(at, out_refs, scratch, share, i, d_scores)
      else:
        warp_groups.finish_reads()

    sums = plgpu.ACC(shape, jnp.float32)
    pl.run_scoped(scope, sums, sums)

  plgpu.barrier_wait(scratch['kv_full'])
  stop = at.stop * (2 * share)
  lax.fori_loop(first, stop, step, None)
  rows = pl.ds(at.first_row(), HALF)
  d_k, d_v = d_k_ref[...], d_v_ref[...]

  @pl.when(stop > first)
  def _():
    last = shared.slot_of(stop - first - 1, _STAGES)
    plgpu.barrier_arrive(scratch['empty'].at[last])

  # Nobody else reads this half.
  for name, ref, value in (('k', k_ref, d_k * at.scale), ('v', v_ref, d_v)):
    ref[...] = value.astype(dtype)
    plgpu.commit_smem()
    plgpu.copy_smem_to_gmem(ref, out_refs[name].at[at.b, rows, at.kv])
  plgpu.wait_smem_to_gmem(0)


def _save(at, out_refs, scratch, share, i, d_scores):
  """Writes a quarter of a pair of blocks."""
  n, turn = warp_groups.divide(i, share)
  block, half = warp_groups.divide(n, 2)
  ref = scratch['d_scores'].at[at.group, lax.rem(i, np.int32(2))]
  plgpu.wait_smem_to_gmem(1, wait_read_only=True)  # The one before the last.
  ref[...] = d_scores
  plgpu.commit_smem()  # Ends reads, too.
  tile = out_refs['d_scores'].at[
    at.b, at.kv * share + turn, shared.pair(block, at.block)
  ]
  rows, columns = (pl.ds(x * HALF, HALF) for x in (at.group, half))
  plgpu.copy_smem_to_gmem(ref, tile.at[rows, columns])
