# SPDX-License-Identifier: Apache-2.0
"""`ops.cca_prologue` in Triton: one pass forward, three back.

Forward, the convolution, the mean, the norm, the temperature and the rotation
of a block of tokens never leave the registers.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from ops import dispatch
from ops.cca import api
from ops.cca.triton import kernels
from ops.triton import launch

# Tokens of a block, warps, stages: what compiles without spills. On a CPU also
# short rows shall have several blocks.
_SHAPES = {'cuda': (64, 4, 3), 'rocm': (32, 4, 1), 'cpu': (16, 1, 1)}
# Of the tokens, each with a part of the gradient of the convolution's kernel:
# with heads and lags, about three programs for each multiprocessor.
_SPLITS = {'cuda': 13, 'rocm': 10, 'cpu': 2}


def unsupported(projected_BLP, kernel_GCX, bias, t, cos, *_):
  """Why not, or None."""
  del bias, t
  if projected_BLP.size == 0:
    return 'there are no tokens'
  if projected_BLP.size >= 2**31:
    return f'{projected_BLP.size} numbers are more than 32 bits can count'
  if dispatch.platform() == 'cuda' and projected_BLP.dtype.itemsize > 2:
    return 'exact float32 products do not fit in the registers'
  channels, rotated = kernel_GCX.shape[1], cos.shape[-1]
  if not rotated:
    return 'nothing is rotated'
  least = 1 if dispatch.platform() == 'cpu' else 16  # Of a matrix product.
  sizes = (channels, rotated // 2, channels - rotated or channels)
  if any(size < least or size & (size - 1) for size in sizes):
    return (
      f'{channels} channels, {rotated} of them rotated, do not fall into parts '
      f'that are powers of two and at least {least}'
    )
  return None


def cca_prologue(*inputs: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
  """See `ops.cca_prologue`."""
  return api.cca_prologue(_KERNELS, *inputs)


def _forward(projected, kernel, bias, temperature, cos, sin, segments):
  sizes = _sizes(projected, kernel, temperature, cos.shape[-1], segments)
  (batch, length, _), dtype = projected.shape, projected.dtype
  queries = (batch, length, sizes.heads * sizes.channels)
  keys = (batch, length, sizes.kv_heads * sizes.channels)
  scales = (batch, sizes.heads + sizes.kv_heads, length)
  warmth = _warmth(sizes, temperature)
  return _call(
    kernels.forward,
    sizes,
    (sizes.blocks,),
    (projected, kernel.astype(dtype), bias, warmth, cos, sin, *_some(segments)),
    [
      *(jax.ShapeDtypeStruct(s, dtype) for s in (queries, keys, keys)),
      jax.ShapeDtypeStruct(scales, jnp.float32),
    ],
  )


def _backward(projected, dy, kernel, temperature, segments):
  # No more rotations.
  sizes = _sizes(projected, kernel, temperature, 0, segments)
  (d_projected,) = _call(
    kernels.convolve_back,
    sizes,
    (sizes.blocks,),
    (dy, kernel.astype(dy.dtype), *_some(segments)),
    [jax.ShapeDtypeStruct(projected.shape, projected.dtype)],
  )
  splits = min(sizes.blocks, _SPLITS[dispatch.platform()])
  (parts,) = _call(
    kernels.kernel_gradient,
    sizes,
    (sizes.lags, splits),
    (projected, dy, *_some(segments)),
    [jax.ShapeDtypeStruct((splits, *kernel.shape), jnp.float32)],
  )
  return d_projected, parts


def unnormalize(q, unit, scale, kernel, temperature, cos, sin, d_q, d_k):
  """See `api.Kernels`; `q` and `d_q` are [B, L, H * C], keys likewise."""
  groups, channels, _ = kernel.shape
  like_z = jax.ShapeDtypeStruct((*q.shape[:2], groups * channels), q.dtype)
  sizes = _sizes(like_z, kernel, temperature, cos.shape[-1], None)
  f32 = lambda n: jax.ShapeDtypeStruct((sizes.blocks, n), jnp.float32)
  dy, warm, sums = _call(
    kernels.unnormalize,
    sizes,
    (sizes.blocks,),
    (q, unit, scale, _warmth(sizes, temperature), cos, sin, d_q, d_k),
    [like_z, f32(groups), f32(groups * channels)],
  )
  warm = jnp.sum(warm, axis=0)[sizes.heads :]
  return dy, jnp.sum(sums, axis=0), warm


def of_values(dv, d_projected, kernel, temperature, segments):
  """See `api.Kernels`."""
  sizes = _sizes(dv, kernel, temperature, 0, segments)
  (d_projected,) = _call(
    kernels.of_values,
    sizes,
    (sizes.blocks,),
    (dv, d_projected, *_some(segments)),
    [jax.ShapeDtypeStruct(d_projected.shape, d_projected.dtype)],
    heads=sizes.kv_heads,
    aliases={1: 0},
  )
  return d_projected


_KERNELS = api.Kernels(_forward, unnormalize, _backward, of_values)


def _warmth(sizes, temperature):
  """What each head is multiplied by after the norm."""
  return jnp.concatenate([jnp.ones(sizes.heads), temperature])


def _sizes(z, kernel, temperature, rotated, segments):
  batch, length, _ = z.shape
  groups, channels, mixed = kernel.shape
  return kernels.Sizes(
    batch=batch,
    length=length,
    heads=groups - len(temperature),
    kv_heads=len(temperature),
    channels=channels,
    rotated=rotated,
    lags=mixed // channels,
    block=_SHAPES[dispatch.platform()][0],
    packed=segments is not None,
  )


def _some(segments):
  return () if segments is None else (segments,)


def _call(
  kernel, sizes, programs, inputs, results, *, heads=None, aliases=None
):
  heads = heads or sizes.heads + sizes.kv_heads
  _, warps, stages = _SHAPES[dispatch.platform()]
  return launch.kernel_call(
    functools.partial(kernel, sizes=sizes),
    f'cca_{kernel.__name__}',
    # Heads first: those of the same tokens run together, and share the cache.
    (heads, *programs),
    results,
    warps=warps,
    stages=stages,
    aliases=aliases,
  )(*inputs)
