# SPDX-License-Identifier: Apache-2.0
"""CCA's prologue for Hopper GPUs: the kernel of the projections' gradient."""

import functools

import jax
import jax.numpy as jnp
from jax.experimental.pallas import mosaic_gpu as plgpu

from ops.cca.hopper import runs, shared
from ops.cca.hopper.shared import CHUNK, chunks
from ops.hopper.warp_groups import GROUPS, HALF, PATTERN


# Kernels of the same shape are made once: each takes a second to compile.
@functools.partial(jax.jit, static_argnames='kv_heads')
def of_inputs(inputs: dict[str, jax.Array], kv_heads: int) -> jax.Array:
  """The gradient [B, L, G + K, C] of the projections.

  Of the last K heads, which hold values, nothing is written.
  """
  x = inputs['x']
  batch, length, groups, channels = x.shape
  shape = batch, length, groups + kv_heads, channels
  results = {'dx': jax.ShapeDtypeStruct(shape, x.dtype)}
  shape = GROUPS, channels // CHUNK, HALF, CHUNK
  scratch = {'out': plgpu.SMEM(shape, x.dtype, transforms=PATTERN)}
  block = functools.partial(_of_inputs, 0.5 * kv_heads / (groups - kv_heads))
  return runs.launch(
    block, 'cca_of_inputs', inputs, results, scratch, back=True
  )['dx']


def _of_inputs(share, refs, scratch, run, group, n, number):
  """Half a block of the gradient of the projections."""
  at = shared.Block(refs, n)
  lags = scratch['matrices'].shape[0]
  weight = share * run.partners.astype(jnp.float32)
  values = runs.convolved(at, scratch, group, number, back=True)
  values = runs.add_partners(scratch, run, group, number + lags, weight, values)
  plgpu.wait_smem_to_gmem(0, wait_read_only=True)  # Of the block before.
  for i, value in enumerate(values):
    ref = scratch['out'].at[group, i]
    ref[...] = value.astype(ref.dtype)
  plgpu.commit_smem()
  target_ref = refs['dx'].at[at.b, at.half(group), run.head]
  for i, chunk in enumerate(chunks(target_ref.shape[-1])):
    plgpu.copy_smem_to_gmem(
      scratch['out'].at[group, i], target_ref.at[:, chunk]
    )
  return number + lags + run.partners
