# SPDX-License-Identifier: Apache-2.0
"""CCA's queries and keys of one new token of each row, in one kernel.

Both convolutions, the mean path, the norm and the rotation: XLA takes eight
kernels, each of which takes longer to start than to run. A program has a head
and reads its matrices once.

Axis letters: those of `zaya_jax.inference.decoding.network`; G heads of queries
and keys together, T samples before the token, N channels of a part of a head.
"""

import functools
import math

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from ops.cca import reference
from ops.triton import backend, launch
from ops.triton.backend import plgpu


def is_taken(dtype: jnp.dtype, channels: int, d_rope: int) -> bool:
  """Whether single tokens of a type go through `look_back`."""
  sizes = [n for n in (channels, d_rope, channels - d_rope) if n]
  are_blocks = all(map(launch.is_block, sizes))
  return backend.runs() and are_blocks and jnp.dtype(dtype).itemsize == 2


def look_back(
  out_BX: jax.Array,
  conv_BTZ: jax.Array,
  kernel_GCX: jax.Array,
  bias_Z: jax.Array,
  temperature_K: jax.Array,
  rope: tuple[jax.Array, jax.Array],
) -> tuple[jax.Array, jax.Array]:
  """Queries and keys, normed and rotated.

  Args:
    out_BX: the projections, queries and keys first.
    conv_BTZ: the samples of queries and keys before, the oldest first.
    kernel_GCX: both convolutions, [G, out, lags * in], the oldest lag first.
    bias_Z: float32.
    temperature_K: float32.
    rope: cosine and sine, [B, R] float32.

  Returns:
    [B, H, C] and [B, K, C], in the type of `out_BX`.
  """
  groups, channels, _ = kernel_GCX.shape
  batch, kv_heads = len(out_BX), len(temperature_K)
  shape = lambda heads: jax.ShapeDtypeStruct(
    (batch, heads, channels), out_BX.dtype
  )
  return launch.kernel_call(
    functools.partial(_kernel, d_rope=rope[0].shape[-1]),
    'cca_one',
    (batch, groups),
    (shape(groups - kv_heads), shape(kv_heads)),
    warps=4,
  )(out_BX, conv_BTZ, kernel_GCX, bias_Z, temperature_K, *rope)


def _kernel(out_ref, conv_ref, kernel_ref, *refs, d_rope):
  bias_ref, temperature_ref, cos_ref, sin_ref, q_ref, k_ref = refs
  b, g = pl.program_id(0), pl.program_id(1)
  heads, channels = q_ref.shape[1:]
  group = heads // k_ref.shape[1]
  is_query = g < heads
  channel_C = jnp.arange(channels, dtype=jnp.int32)
  before = conv_ref.shape[1]

  def sample(head, channel, lag=before):
    """Of the token itself, or of one of those before."""
    if lag < before:
      found = plgpu.load(conv_ref.at[b, lag, head * channels + channel])
    else:
      found = plgpu.load(out_ref.at[b, head * channels + channel])
    return found.astype(jnp.float32)

  def part(first, size):
    """[N]: convolved, and the mean path."""
    channel_N = first + jnp.arange(size, dtype=jnp.int32)
    y_N = plgpu.load(bias_ref.at[g * channels + channel_N])
    for lag in range(before + 1):
      column_C = lag * channels + channel_C
      w_NC = plgpu.load(kernel_ref.at[g, channel_N[:, None], column_C[None]])
      x_C = sample(g, channel_C, lag)
      y_N += jnp.sum(w_NC.astype(jnp.float32) * x_C[None], axis=1)
    other_N = jnp.zeros((size,), jnp.float32)
    for i in range(group):
      # Of a query its key, once for each; of a key its queries.
      head = jnp.where(is_query, heads + g // group, (g - heads) * group + i)
      other_N += sample(head, channel_N)
    return y_N + 0.5 * (sample(g, channel_N) + other_N / group)

  half = d_rope // 2
  left_N, right_N = part(0, half), part(half, half)
  parts = [left_N, right_N]
  if channels > d_rope:
    parts.append(part(d_rope, channels - d_rope))
  square = sum(jnp.sum(y * y) for y in parts)
  scale = jax.lax.rsqrt(jnp.maximum(square, reference.NORM_EPS**2))
  scale *= math.sqrt(channels)
  temperature = plgpu.load(temperature_ref.at[jnp.maximum(g - heads, 0)])
  scale *= jnp.where(is_query, 1.0, temperature)
  rope_N = jnp.arange(half, dtype=jnp.int32)
  turn = lambda ref, first: plgpu.load(ref.at[b, first + rope_N])
  parts[0] = left_N * turn(cos_ref, 0) - right_N * turn(sin_ref, 0)
  parts[1] = right_N * turn(cos_ref, half) + left_N * turn(sin_ref, half)

  def store(ref, head):
    first = 0
    for y_N in parts:
      channel_N = first + jnp.arange(y_N.size, dtype=jnp.int32)
      y_N = (y_N * scale).astype(ref.dtype)
      plgpu.store(ref.at[b, head, channel_N], y_N)
      first += y_N.size

  pl.when(is_query)(lambda: store(q_ref, g))
  pl.when(jnp.logical_not(is_query))(lambda: store(k_ref, g - heads))
