# SPDX-License-Identifier: Apache-2.0
"""CCA's prologue for Hopper GPUs: the kernels with a head's matrices at hand.

Forward to queries and keys, and back from the gradient before the norm to that
of the projections. A head's matrices are read once for all blocks of a run.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from ops import warp_groups
from ops.cca import hopper, reference
from ops.cca.hopper import CHANNELS, CHUNK, CHUNKS
from ops.warp_groups import GROUPS, HALF, PATTERN

ROTATED = 64  # Channels of a head.
_TURNED = ROTATED // 2  # Of either half of them.
# Of 32 KB: what fits beside results on their way out; a lag's matrix takes as
# much.
_TILES = 6


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


# Kernels of the same shape are made once: each takes a second to compile.
@functools.partial(jax.jit, static_argnames='kv_heads')
def forward(
  inputs: dict[str, jax.Array], kv_heads: int
) -> dict[str, jax.Array]:
  """Queries 'q', keys 'k' and what going back needs of them; see `mosaic`.

  Those are 'unit', keys before their temperature, and 'scale' [B, G, L]
  float32, what each head was multiplied by.
  """
  batch, length, groups, _ = inputs['x'].shape
  dtype = inputs['x'].dtype
  shape = lambda n: jax.ShapeDtypeStruct((batch, length, n, CHANNELS), dtype)
  results = {
    'q': shape(groups - kv_heads),
    'k': shape(kv_heads),
    'unit': shape(kv_heads),
    'scale': jax.ShapeDtypeStruct((batch, groups, length), jnp.float32),
  }
  half = (plgpu.TilingTransform((8, _TURNED)), plgpu.SwizzleTransform(64))
  scratch = {
    'turned': plgpu.SMEM((GROUPS, 2, HALF, _TURNED), dtype, transforms=half),
    'kept': plgpu.SMEM((GROUPS, HALF, CHUNK), dtype, transforms=PATTERN),
    'factors': plgpu.SMEM((GROUPS, HALF), jnp.float32),
  }
  return _launch('cca_forward', inputs, results, scratch, kv_heads, _forward)


@functools.partial(jax.jit, static_argnames='kv_heads')
def of_inputs(inputs: dict[str, jax.Array], kv_heads: int) -> jax.Array:
  """The gradient [B, L, G, C] of the projections; see `mosaic`."""
  x = inputs['x']
  results = {'dx': jax.ShapeDtypeStruct(x.shape, x.dtype)}
  shape = GROUPS, len(CHUNKS), HALF, CHUNK
  scratch = {'out': plgpu.SMEM(shape, x.dtype, transforms=PATTERN)}
  name = 'cca_of_inputs'
  return _launch(name, inputs, results, scratch, kv_heads, _of_inputs)['dx']


def _launch(name, inputs, results, scratch, kv_heads, block):
  """A kernel whose programs are the `Run`s of 'runs'.

  Args:
    name: of the kernel.
    inputs: see `mosaic`.
    results: see `hopper.launch`.
    scratch: of `block`.
    kv_heads: K.
    block: `_forward` or `_of_inputs`.
  """
  x, lags = inputs['x'], inputs['kernel'].shape[2] // CHANNELS
  back = block is _of_inputs
  matrices = (lags, CHANNELS, CHANNELS)
  scratch = scratch | {
    'matrices': plgpu.SMEM(matrices, x.dtype, transforms=PATTERN),
    'fetched': plgpu.Barrier(num_arrivals=lags),
    **hopper.ring_scratch(_TILES - lags, x.dtype),
  }

  def run_of(refs):
    index = lax.axis_index('program')
    return Run(*(refs['runs'][index, i] for i in range(len(Run._fields))))

  def load(refs, scratch):
    _load(refs, scratch, run_of(refs), lags, back)

  def compute(refs, scratch, group):
    run = run_of(refs)
    step = functools.partial(block, refs, scratch, run, kv_heads, group)
    plgpu.barrier_wait(scratch['fetched'])
    lax.fori_loop(run.first, run.stop, step, np.int32(0))

  grid = {'program': len(inputs['runs'])}
  return hopper.launch(load, compute, name, inputs, results, scratch, grid)


def _load(refs, scratch, run, lags, back):
  """Has the matrices of a run and its tiles fetched, the oldest lag first."""
  for lag in range(lags):
    columns = pl.ds(lag * CHANNELS, CHANNELS)
    plgpu.copy_gmem_to_smem(
      refs['kernel'].at[run.head, :, columns],
      scratch['matrices'].at[lag],
      scratch['fetched'],
    )
  ring = hopper.ring_of(scratch)

  def step(n, number):
    at = hopper.Block(refs, n)
    for lag in reversed(range(lags)):
      ring.fill(number, at.tokens('x', run.head, lag if back else -lag))
      number += 1

    def partner(i, number):
      ring.fill(number, at.tokens('x', run.partner + i))
      return number + 1

    return lax.fori_loop(np.int32(0), run.partners, partner, number)

  ring.drain(lax.fori_loop(run.first, run.stop, step, np.int32(0)))


def _convolved(at, scratch, group, number, back):
  """Half a block's convolution and half of its tokens, in chunks, float32.

  Args:
    at: the block.
    scratch: of the kernel.
    group: index of the warp group.
    number: of the tile of the oldest lag.
    back: whether to multiply by the transposed matrices.
  """
  ring, matrices = hopper.ring_of(scratch), scratch['matrices']
  lags = matrices.shape[0]

  def scope(sums_ref):
    for i, lag in enumerate(reversed(range(lags))):
      tile_ref = ring.wait(number + i)
      if lag and (cut := at.cut(lag)) is not None:
        pl.when(cut)(functools.partial(at.hide, group, tile_ref, lag))
      mine_ref = tile_ref.at[:, pl.ds(group * HALF, HALF)]
      for j, chunk in enumerate(CHUNKS):
        matrix_ref = matrices.at[lag, chunk]
        if back:
          matrix_ref = matrices.at[lag, :, chunk].transpose((1, 0))
        plgpu.wgmma(sums_ref, mine_ref.at[j], matrix_ref)
      if i:  # The products of the lag before are done.
        plgpu.wgmma_wait(len(CHUNKS))
        ring.release(number + i - 1)
    own = [
      0.5 * mine_ref.at[j][...].astype(jnp.float32) for j in range(len(CHUNKS))
    ]
    sums = sums_ref[...]
    warp_groups.finish_reads()
    ring.release(number + lags - 1)
    return [sums[:, j * CHUNK : (j + 1) * CHUNK] + x for j, x in enumerate(own)]

  return pl.run_scoped(scope, plgpu.ACC((HALF, CHANNELS), jnp.float32))


def _add_partners(scratch, run, group, number, weight, values):
  """Adds the heads that share a mean with this one; the next tile's number."""
  ring = hopper.ring_of(scratch)

  def add(i, values):
    tile_ref = ring.wait(number + i).at[:, pl.ds(group * HALF, HALF)]
    more = [tile_ref.at[j][...] for j in range(len(CHUNKS))]
    warp_groups.finish_reads()
    ring.release(number + i)
    return tuple(
      value + weight * x.astype(jnp.float32)
      for value, x in zip(values, more, strict=True)
    )

  return lax.fori_loop(np.int32(0), run.partners, add, tuple(values))


def _forward(refs, scratch, run, kv_heads, group, n, number):
  """Half a block of queries or keys."""
  at, heads = hopper.Block(refs, n), refs['x'].shape[2] - kv_heads
  lags = scratch['matrices'].shape[0]
  half = at.half(group)
  cos, sin = (
    warp_groups.load(
      refs[name].at[at.b, half, pl.ds(0, _TURNED)], plgpu.Layout.WGMMA
    )
    for name in ('cos', 'sin')
  )
  values = _convolved(at, scratch, group, number, False)
  biases = [
    warp_groups.load(refs['bias'].at[run.head, chunk], hopper.BY_COLUMN)
    for chunk in CHUNKS
  ]
  values = [
    value + hopper.spread(bias, value.shape, 1)
    for value, bias in zip(values, biases, strict=True)
  ]
  weight = 0.5 / run.partners.astype(jnp.float32)
  values = _add_partners(scratch, run, group, number + lags, weight, values)
  square = jnp.sum(sum(y * y for y in values), axis=1)
  scale = lax.rsqrt(jnp.maximum(square, reference.NORM_EPS**2))
  scale *= CHANNELS**0.5
  turned, kept = (y * hopper.spread(scale, y.shape, 0) for y in values)
  left, right = turned[:, :_TURNED], turned[:, _TURNED:]
  parts = left * cos - right * sin, right * cos + left * sin, kept

  plgpu.wait_smem_to_gmem(0, wait_read_only=True)  # Of the block before.
  scratch['factors'].at[group][...] = scale
  plgpu.commit_smem()
  plgpu.copy_smem_to_gmem(
    scratch['factors'].at[group], refs['scale'].at[at.b, run.head, half]
  )
  put = functools.partial(_put, scratch, group)

  @pl.when(run.head < heads)
  def _():
    put(parts, refs['q'].at[at.b, half, run.head])

  @pl.when(run.head >= heads)
  def _():
    key = run.head - heads
    put(parts, refs['unit'].at[at.b, half, key])
    plgpu.wait_smem_to_gmem(0, wait_read_only=True)
    warmth = refs['warmth'][key]
    put([y * warmth for y in parts], refs['k'].at[at.b, half, key])

  return number + lags + run.partners


def _put(scratch, group, parts, target_ref):
  """Writes both halves that were rotated and the rest of a head."""
  *turned, kept = parts
  memory = [scratch['turned'].at[group, i] for i in range(len(turned))]
  memory.append(scratch['kept'].at[group])
  for ref, part in zip(memory, parts, strict=True):
    ref[...] = part.astype(ref.dtype)
  plgpu.commit_smem()
  columns = [pl.ds(i * _TURNED, _TURNED) for i in range(len(turned))]
  columns.append(pl.ds(ROTATED, CHANNELS - ROTATED))
  for ref, at in zip(memory, columns, strict=True):
    plgpu.copy_smem_to_gmem(ref, target_ref.at[:, at])


def _of_inputs(refs, scratch, run, kv_heads, group, n, number):
  """Half a block of the gradient of the projections."""
  at, groups = hopper.Block(refs, n), refs['x'].shape[2]
  lags = scratch['matrices'].shape[0]
  share = 0.5 * kv_heads / (groups - kv_heads)
  weight = share * run.partners.astype(jnp.float32)
  values = _convolved(at, scratch, group, number, True)
  values = _add_partners(scratch, run, group, number + lags, weight, values)
  plgpu.wait_smem_to_gmem(0, wait_read_only=True)  # Of the block before.
  for i, value in enumerate(values):
    ref = scratch['out'].at[group, i]
    ref[...] = value.astype(ref.dtype)
  plgpu.commit_smem()
  target_ref = refs['dx'].at[at.b, at.half(group), run.head]
  for i, chunk in enumerate(CHUNKS):
    plgpu.copy_smem_to_gmem(
      scratch['out'].at[group, i], target_ref.at[:, chunk]
    )
  return number + lags + run.partners
