# SPDX-License-Identifier: Apache-2.0
"""CCA's prologue for Hopper GPUs: the gradient of the convolution's kernel.

A program sums over a run of blocks, for all lags: the tokens of a block are
fetched once, their gradients at each lag. Of its two warp groups each has half
of the channels; where they are one chunk, half of the tokens of each block.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from ops.cca.hopper import shared
from ops.cca.hopper.shared import CHUNK, chunks
from ops.hopper.warp_groups import GROUPS, HALF, ROWS


# Kernels of the same shape are made once: each takes a second to compile.
@functools.partial(jax.jit, static_argnames=('lags', 'runs'))
def of_kernel(inputs: dict[str, jax.Array], lags: int, runs: int) -> jax.Array:
  """Its gradient [parts, G, C, lags * C] float32, to be summed over parts."""
  batch, length, groups, channels = inputs['x'].shape
  blocks, each = batch * length // ROWS, len(chunks(channels))
  shape = runs * (GROUPS // each), groups, channels, lags * channels
  pattern = plgpu.TilingTransform((8, 32)), plgpu.SwizzleTransform(128)
  part = (GROUPS, HALF, CHUNK)
  scratch = {
    **shared.ring_scratch(channels, inputs['x'].dtype),
    'hidden': plgpu.Barrier(num_arrivals=GROUPS),
    'out': plgpu.SMEM(part, jnp.float32, transforms=pattern),
  }

  def ends():
    run = lax.axis_index('run')
    bound = lambda i: lax.div(i * blocks, np.int32(runs))
    return bound(run), bound(run + 1)

  load = lambda refs, scratch: _load(refs, scratch, ends(), lags)

  def compute(refs, scratch, group):
    scope = functools.partial(_sum, refs, scratch, group, ends(), lags)
    sums = plgpu.ACC((HALF, CHUNK), jnp.float32)
    pl.run_scoped(scope, *[sums] * (lags * each))

  found = shared.launch(
    load,
    compute,
    'cca_of_kernel',
    inputs,
    {'parts': jax.ShapeDtypeStruct(shape, jnp.float32)},
    scratch,
    # The last changes first: heads of the same tokens run side by side.
    {'run': runs, 'head': groups},
  )
  return found['parts']


def _load(refs, scratch, ends, lags):
  """Has blocks of tokens fetched, and their gradients at each lag."""
  ring, head = shared.ring_of(scratch), lax.axis_index('head')

  def step(n, number):
    at = shared.Block(refs, n)
    ring.fill(number, at.tokens('z', head))
    for lag in range(lags):
      ring.fill(number + 1 + lag, at.tokens('x', head, lag))
    return number + 1 + lags

  ring.drain(lax.fori_loop(ends[0], ends[1], step, np.int32(0)))


def _sum(refs, scratch, group, ends, lags, *sums_refs):
  """Half of the rows of the matrices, of a run."""
  ring, tiles = shared.ring_of(scratch), lags + 1
  each = len(sums_refs) // lags
  half = pl.ds(group * HALF, HALF)
  part, rows = lax.axis_index('run'), half
  if each < GROUPS:
    part, rows = part * GROUPS + group, pl.ds(0, CHUNK)

  def mine(tile_ref):
    """The tokens of a tile that this group sums over."""
    return tile_ref if each == GROUPS else tile_ref.at[:, half]

  def step(n, number):
    at = shared.Block(refs, n)
    # Channels are rows of the result.
    z_ref = mine(ring.wait(number))
    z_ref = z_ref.at[group if each == GROUPS else 0].transpose((1, 0))
    for lag in range(lags):
      tile_ref = ring.wait(number + 1 + lag)
      if lag and (cut := at.cut(lag)) is not None:
        pl.when(cut)(
          functools.partial(_hide, at, scratch, group, tile_ref, lag)
        )
      for i in range(each):
        plgpu.wgmma(sums_refs[lag * each + i], z_ref, mine(tile_ref).at[i])
      plgpu.wgmma_wait(each)
      if lag:
        ring.release(number + lag)
        continue

      @pl.when(number > 0)
      def _():
        ring.release(number - tiles)
        ring.release(number - 1)

    return number + tiles

  number = lax.fori_loop(ends[0], ends[1], step, np.int32(0))
  plgpu.wgmma_wait(0)
  ring.release(number - tiles)
  ring.release(number - 1)
  target_ref = refs['parts'].at[part, lax.axis_index('head'), rows]
  out_ref = scratch['out'].at[group]
  for i, sums_ref in enumerate(sums_refs):
    value = sums_ref[...]
    plgpu.wait_smem_to_gmem(0, wait_read_only=True)
    out_ref[...] = value
    plgpu.commit_smem()
    columns = pl.ds(i * CHUNK, CHUNK)
    plgpu.copy_smem_to_gmem(out_ref, target_ref.at[:, columns])


def _hide(at, scratch, group, tile_ref, lag):
  """Zeroes what is not seen; both groups multiply all rows of the tile."""
  at.hide(group, tile_ref, lag)
  plgpu.barrier_arrive(scratch['hidden'])
  plgpu.barrier_wait(scratch['hidden'])
