# SPDX-License-Identifier: Apache-2.0
"""CCA's prologue for Hopper GPUs: kernels with a head's matrices at hand.

A program reads the matrices of its head once, for all blocks of its run.
"""

import functools
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from ops.cca.hopper import shared
from ops.cca.hopper.shared import CHUNK, chunks
from ops.hopper import warp_groups
from ops.hopper.warp_groups import HALF, PATTERN


class Run(NamedTuple):
  """What a program computes.

  Attributes:
    head: of queries, then of keys.
    first: of its blocks.
    stop: behind the last one.
    partner: the first head that shares a mean with this one.
    partners: how many do.
  """

  head: int
  first: int
  stop: int
  partner: int
  partners: int


def schedule(
  heads: int, kv_heads: int, blocks: int, lags: int, processors: int
) -> np.ndarray:
  """[programs, 5] int32, a `Run` each; as many as there are processors.

  Keys read more tiles for a block, so that their runs are shorter.
  """
  group = heads // kv_heads

  def longest(key_runs):
    """Tiles of the longest run, and runs of a query head."""
    runs = max(1, min(blocks, (processors - kv_heads * key_runs) // heads))
    tiles = -(-blocks // runs) * (lags + 1)
    return max(tiles, -(-blocks // key_runs) * (lags + group)), runs

  most = max(1, min(blocks, (processors - heads) // kv_heads))
  key_runs = min(range(1, most + 1), key=longest)
  found = []
  for head in range(heads + kv_heads):
    key = head - heads
    runs = key_runs if key >= 0 else longest(key_runs)[1]
    partners = (key * group, group) if key >= 0 else (heads + head // group, 1)
    for i in range(runs):
      ends = blocks * i // runs, blocks * (i + 1) // runs
      found.append(Run(head, *ends, *partners))
  return np.array(found, np.int32)


def launch(block, name, inputs, results, scratch, *, back):
  """A kernel whose programs are the `Run`s of 'runs'.

  Args:
    block: (references by name, scratch, run, warp group, block, number of its
      first tile) computes half a block; the number of the next tile.
    name: of the kernel.
    inputs: of `ops.cca.hopper`.
    results: see `shared.launch`.
    scratch: of `block`.
    back: whether tokens meet those after them, and the transposed matrices.
  """
  x, (_, channels, mixed) = inputs['x'], inputs['kernel'].shape
  lags = mixed // channels
  scratch = scratch | {
    'matrices': plgpu.SMEM(
      (lags, channels, channels), x.dtype, transforms=PATTERN
    ),
    'fetched': plgpu.Barrier(num_arrivals=lags),
    **shared.ring_scratch(channels, x.dtype, matrices=lags),
  }

  def run_of(refs):
    index = lax.axis_index('program')
    return Run(*(refs['runs'][index, i] for i in range(len(Run._fields))))

  def load(refs, scratch):
    _load(refs, scratch, run_of(refs), lags, back)

  def compute(refs, scratch, group):
    run = run_of(refs)
    step = functools.partial(block, refs, scratch, run, group)
    plgpu.barrier_wait(scratch['fetched'])
    lax.fori_loop(run.first, run.stop, step, np.int32(0))

  grid = {'program': len(inputs['runs'])}
  return shared.launch(load, compute, name, inputs, results, scratch, grid)


def _load(refs, scratch, run, lags, back):
  """Has the matrices of a run and its tiles fetched, the oldest lag first."""
  channels = scratch['matrices'].shape[-1]
  for lag in range(lags):
    columns = pl.ds(lag * channels, channels)
    plgpu.copy_gmem_to_smem(
      refs['kernel'].at[run.head, :, columns],
      scratch['matrices'].at[lag],
      scratch['fetched'],
    )
  ring = shared.ring_of(scratch)

  def step(n, number):
    at = shared.Block(refs, n)
    for lag in reversed(range(lags)):
      ring.fill(number, at.tokens('x', run.head, lag if back else -lag))
      number += 1

    def partner(i, number):
      ring.fill(number, at.tokens('x', run.partner + i))
      return number + 1

    return lax.fori_loop(np.int32(0), run.partners, partner, number)

  ring.drain(lax.fori_loop(run.first, run.stop, step, np.int32(0)))


def convolved(at, scratch, group, number, *, back):
  """Half a block's convolution and half of its tokens, in chunks, float32.

  Args:
    at: the block.
    scratch: of the kernel.
    group: index of the warp group.
    number: of the tile of the oldest lag.
    back: see `launch`.
  """
  ring, matrices = shared.ring_of(scratch), scratch['matrices']
  lags, channels, _ = matrices.shape
  columns = chunks(channels)

  def scope(sums_ref):
    for i, lag in enumerate(reversed(range(lags))):
      tile_ref = ring.wait(number + i)
      if lag and (cut := at.cut(lag)) is not None:
        pl.when(cut)(functools.partial(at.hide, group, tile_ref, lag))
      mine_ref = tile_ref.at[:, pl.ds(group * HALF, HALF)]
      for j, chunk in enumerate(columns):
        matrix_ref = matrices.at[lag, chunk]
        if back:
          matrix_ref = matrices.at[lag, :, chunk].transpose((1, 0))
        plgpu.wgmma(sums_ref, mine_ref.at[j], matrix_ref)
      if i:  # The products of the lag before are done.
        plgpu.wgmma_wait(len(columns))
        ring.release(number + i - 1)
    own = [
      0.5 * mine_ref.at[j][...].astype(jnp.float32) for j in range(len(columns))
    ]
    sums = sums_ref[...]
    warp_groups.finish_reads()
    ring.release(number + lags - 1)
    return [sums[:, j * CHUNK : (j + 1) * CHUNK] + x for j, x in enumerate(own)]

  return pl.run_scoped(scope, plgpu.ACC((HALF, channels), jnp.float32))


def add_partners(scratch, run, group, number, weight, values):
  """Adds the heads that share a mean with this one; the next tile's number."""
  ring = shared.ring_of(scratch)

  def add(i, values):
    tile_ref = ring.wait(number + i).at[:, pl.ds(group * HALF, HALF)]
    more = [tile_ref.at[j][...] for j in range(len(values))]
    warp_groups.finish_reads()
    ring.release(number + i)
    return tuple(
      value + weight * x.astype(jnp.float32)
      for value, x in zip(values, more, strict=True)
    )

  return lax.fori_loop(np.int32(0), run.partners, add, tuple(values))
