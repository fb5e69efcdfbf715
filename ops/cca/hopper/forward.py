# SPDX-License-Identifier: Apache-2.0
"""CCA's prologue for Hopper GPUs: the kernel of queries and keys."""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from ops.cca import reference
from ops.cca.hopper import runs, shared
from ops.cca.hopper.shared import chunks
from ops.hopper import warp_groups
from ops.hopper.warp_groups import GROUPS, HALF


def rotated(channels: int) -> int:
  """Channels of a head that turn with the position."""
  return channels // 2


# Kernels of the same shape are made once: each takes a second to compile.
@functools.partial(jax.jit, static_argnames='kv_heads')
def forward(
  inputs: dict[str, jax.Array], kv_heads: int
) -> dict[str, jax.Array]:
  """Queries 'q', keys 'k' and what going back needs of them.

  Those are 'unit', keys before their temperature, and 'scale' [B, G, L]
  float32, what each head was multiplied by.
  """
  (batch, length, _, channels), dtype = inputs['x'].shape, inputs['x'].dtype
  turned = rotated(channels)
  groups = inputs['kernel'].shape[0]
  shape = lambda n: jax.ShapeDtypeStruct((batch, length, n, channels), dtype)
  results = {
    'q': shape(groups - kv_heads),
    'k': shape(kv_heads),
    'unit': shape(kv_heads),
    'scale': jax.ShapeDtypeStruct((batch, groups, length), jnp.float32),
  }
  scratch = {
    'turned': _rows((GROUPS, 2, HALF, turned // 2), dtype),
    'kept': _rows((GROUPS, HALF, channels - turned), dtype),
    'factors': plgpu.SMEM((GROUPS, HALF), jnp.float32),
  }
  block = functools.partial(_forward, groups - kv_heads)
  return runs.launch(block, 'cca_forward', inputs, results, scratch, back=False)


def _rows(shape, dtype):
  """Shared memory whose rows are as wide as what is copied."""
  pattern = (
    plgpu.TilingTransform((8, shape[-1])),
    plgpu.SwizzleTransform(shape[-1] * dtype.itemsize),
  )
  return plgpu.SMEM(shape, dtype, transforms=pattern)


def _forward(heads, refs, scratch, run, group, n, number):
  """Half a block of queries or keys."""
  at = shared.Block(refs, n)
  lags, channels = scratch['matrices'].shape[:2]
  turned = rotated(channels)
  half = at.half(group)
  cos, sin = (
    warp_groups.load(
      refs[name].at[at.b, half, pl.ds(0, turned // 2)], plgpu.Layout.WGMMA
    )
    for name in ('cos', 'sin')
  )
  values = runs.convolved(at, scratch, group, number, back=False)
  biases = [
    warp_groups.load(refs['bias'].at[run.head, chunk], warp_groups.BY_COLUMN)
    for chunk in chunks(channels)
  ]
  values = [
    value + warp_groups.spread(bias, value.shape, 1)
    for value, bias in zip(values, biases, strict=True)
  ]
  weight = 0.5 / run.partners.astype(jnp.float32)
  values = runs.add_partners(scratch, run, group, number + lags, weight, values)
  square = jnp.sum(sum(y * y for y in values), axis=1)
  scale = lax.rsqrt(jnp.maximum(square, reference.NORM_EPS**2))
  scale *= channels**0.5
  first, *rest = (y * warp_groups.spread(scale, y.shape, 0) for y in values)
  left, right = first[:, : turned // 2], first[:, turned // 2 : turned]
  kept = rest[0] if rest else first[:, turned:]
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
  width = turned[0].shape[1]
  columns = [pl.ds(i * width, width) for i in range(len(turned))]
  columns.append(pl.ds(2 * width, kept.shape[1]))
  for ref, at in zip(memory, columns, strict=True):
    plgpu.copy_smem_to_gmem(ref, target_ref.at[:, at])
