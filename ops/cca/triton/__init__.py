# SPDX-License-Identifier: Apache-2.0
"""`ops.cca_prologue` in Triton: one pass forward, three back.

Forward, the convolution, the mean, the norm, the temperature and the rotation
of a block of tokens never leave the registers. Going back, the norm comes first
and leaves its gradient in memory, because a convolution wants it at several
lags; one kernel makes the gradient of z of it, one that of the convolution's
kernel, in parts that are summed afterwards. Values are only copied: XLA does.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from ops import dispatch
from ops.cca import kernels, reference

# Tokens of a block, warps, stages: what compiles without spills. On a CPU also
# short rows shall have several blocks.
_SHAPES = {'cuda': (64, 4, 3), 'rocm': (32, 4, 1), 'cpu': (16, 1, 1)}
# Of the tokens, each with a part of the gradient of the convolution's kernel:
# with heads and lags, about three programs for each multiprocessor.
_SPLITS = {'cuda': 13, 'rocm': 10, 'cpu': 2}


def unsupported(z_BLZ, current, delayed, kernel_GCX, bias, t, cos, *_):
  """Why not, or None."""
  del current, delayed, bias, t
  if z_BLZ.size == 0:
    return 'there are no tokens'
  if z_BLZ.size >= 2**31:
    return f'{z_BLZ.size} numbers are more than 32 bits can count'
  if dispatch.platform() == 'cuda' and z_BLZ.dtype.itemsize > 2:
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
  return prologue(_queries_and_keys, *inputs)


def prologue(
  queries_and_keys: Callable[..., tuple[jax.Array, jax.Array]], *inputs: Any
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """See `ops.cca_prologue`, with a function for all but the values.

  That gets the inputs without those of the values: z, kernel, bias,
  temperature, cos, sin and segments.
  """
  z_BLZ, current_BLX, delayed_BLX, kernel_GCX, *more, first_X = inputs
  segments_BL = more[-1]
  past_BLX = reference.delay(delayed_BLX, segments_BL, first_X)
  v_BLX = jnp.concatenate([current_BLX, past_BLX], axis=-1)
  q_BLX, k_BLX = queries_and_keys(z_BLZ, kernel_GCX, *more)
  heads = lambda x: x.reshape(*x.shape[:2], -1, kernel_GCX.shape[1])
  return heads(q_BLX), heads(k_BLX), heads(v_BLX)


@jax.custom_vjp
def _queries_and_keys(*inputs):
  return _forward_rule(*inputs)[0]


def _forward_rule(z, kernel, bias, temperature, cos, sin, segments):
  sizes = _sizes(z, kernel, temperature, cos, segments)
  batch, length, _ = z.shape
  queries = (batch, length, sizes.heads * sizes.channels)
  keys = (batch, length, sizes.kv_heads * sizes.channels)
  scales = (batch, sizes.heads + sizes.kv_heads, length)
  warmth = _warmth(sizes, temperature)
  q, k, unit, scale = _call(
    kernels.forward,
    sizes,
    (sizes.blocks,),
    (z, kernel.astype(z.dtype), bias, warmth, cos, sin, *_some(segments)),
    [
      *(jax.ShapeDtypeStruct(s, z.dtype) for s in (queries, keys, keys)),
      jax.ShapeDtypeStruct(scales, jnp.float32),
    ],
  )
  saved = (z, kernel, temperature, cos, sin, segments, q, unit, scale)
  return (q, k), saved


def _backward_rule(saved, cotangents):
  z, kernel, temperature, cos, sin, segments, *found = saved
  sizes = _sizes(z, kernel, temperature, cos, segments)
  dy, d_bias, d_temperature = unnormalize(
    *(*found, kernel, temperature, cos, sin, *cotangents)
  )
  (dz,) = _call(
    kernels.convolve_back,
    sizes,
    (sizes.blocks,),
    (dy, kernel.astype(z.dtype), *_some(segments)),
    [jax.ShapeDtypeStruct(z.shape, z.dtype)],
  )
  splits = min(sizes.blocks, _SPLITS[dispatch.platform()])
  (parts,) = _call(
    kernels.kernel_gradient,
    sizes,
    (sizes.lags, splits),
    (z, dy, *_some(segments)),
    [jax.ShapeDtypeStruct((splits, *kernel.shape), jnp.float32)],
  )
  return (
    dz,
    jnp.sum(parts, axis=0).astype(kernel.dtype),
    *(d_bias, d_temperature, None, None, None),
  )


_queries_and_keys.defvjp(_forward_rule, _backward_rule)


def unnormalize(
  q: jax.Array,
  unit: jax.Array,
  scale: jax.Array,
  kernel: jax.Array,
  temperature: jax.Array,
  cos: jax.Array,
  sin: jax.Array,
  d_q: jax.Array,
  d_k: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """The gradients before the norm, of the bias and of the temperature.

  Args:
    q: [B, L, H * C] queries, as are their gradients `d_q`.
    unit: [B, L, K * C] keys before their temperature.
    scale: [B, G, L] float32, what the norm multiplied by.
    kernel: of `ops.cca_prologue`, as are the others.
    temperature: [K].
    cos: [B, L, R].
    sin: [B, L, R].
    d_q: see `q`.
    d_k: [B, L, K * C] gradients of the keys.

  Returns:
    [B, L, Z] in the type of q, [Z] and [K] float32.
  """
  groups, channels, _ = kernel.shape
  like_z = jax.ShapeDtypeStruct((*q.shape[:2], groups * channels), q.dtype)
  sizes = _sizes(like_z, kernel, temperature, cos, None)
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


def _warmth(sizes, temperature):
  """What each head is multiplied by after the norm."""
  return jnp.concatenate([jnp.ones(sizes.heads), temperature])


def _sizes(z, kernel, temperature, cos, segments):
  batch, length, _ = z.shape
  groups, channels, mixed = kernel.shape
  return kernels.Sizes(
    batch=batch,
    length=length,
    heads=groups - len(temperature),
    kv_heads=len(temperature),
    channels=channels,
    rotated=cos.shape[-1],
    lags=mixed // channels,
    block=_SHAPES[dispatch.platform()][0],
    packed=segments is not None,
  )


def _some(segments):
  return () if segments is None else (segments,)


def _call(kernel, sizes, programs, inputs, results):
  here = dispatch.platform()
  _, warps, stages = _SHAPES[here]
  return pl.pallas_call(
    functools.partial(kernel, sizes=sizes),
    # Heads first: those of the same tokens run together, and share the cache.
    grid=(sizes.heads + sizes.kv_heads, *programs),
    out_shape=results,
    compiler_params=plgpu.CompilerParams(num_warps=warps, num_stages=stages),
    interpret=here == 'cpu',
    name=f'cca_{kernel.__name__}',
  )(*inputs)
