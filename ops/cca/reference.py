# SPDX-License-Identifier: Apache-2.0
"""The meaning of `ops.cca_prologue`, and its engine in plain XLA.

Its parts are functions of their own: decoding has another layout for some of
them, and comparisons with other programs look between them.

Axis letters: those of `ops.cca_prologue`.
"""

from typing import Any

import jax
import jax.numpy as jnp

# Lower bound of a head's norm; Hugging Face takes the same for float32.
NORM_EPS = float(jnp.finfo(jnp.float32).eps)


def cca_prologue(
  projected_BLP: jax.Array,
  kernel_GCX: jax.Array,
  bias_Z: jax.Array,
  temperature_K: jax.Array,
  cos_BLR: jax.Array,
  sin_BLR: jax.Array,
  segments_BL: jax.Array | None = None,
  first_X: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """See `ops.cca_prologue`."""
  z_BLZ, current_BLX, delayed_BLX = split(projected_BLP, kernel_GCX)
  y_BLZ = convolve(z_BLZ, kernel_GCX, bias_Z, segments_BL)
  kv_heads = len(temperature_K)
  heads = len(kernel_GCX) - kv_heads
  width = heads * kernel_GCX.shape[1]
  q_BLX, k_BLX = jnp.split(z_BLZ, [width], axis=-1)
  mean_q, mean_k = qk_mean(q_BLX, k_BLX, heads, kv_heads)
  y_q, y_k = jnp.split(y_BLZ, [width], axis=-1)
  q_BLHC = normalize(y_q.reshape(mean_q.shape) + mean_q)
  k_BLKC = normalize(y_k.reshape(mean_k.shape) + mean_k)
  k_BLKC *= temperature_K[None, None, :, None]
  v_BLX = values(current_BLX, delayed_BLX, segments_BL, first_X)
  return (
    rotate(q_BLHC, cos_BLR, sin_BLR).astype(z_BLZ.dtype),
    rotate(k_BLKC, cos_BLR, sin_BLR).astype(z_BLZ.dtype),
    v_BLX.reshape(mean_k.shape),
  )


def split(
  projected_BLP: jax.Array, kernel_GCX: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Queries and keys [B, L, Z]; values of this and for the next token."""
  groups, channels, _ = kernel_GCX.shape
  width = groups * channels
  z_BLZ, current_BLX, delayed_BLX = jnp.split(
    projected_BLP, [width, (width + projected_BLP.shape[-1]) // 2], axis=-1
  )
  return z_BLZ, current_BLX, delayed_BLX


def joint_kernel(
  depthwise_IZ: jax.Array,
  depthwise_bias_Z: jax.Array,
  grouped_JGCX: jax.Array,
  grouped_bias_Z: jax.Array,
) -> tuple[jax.Array, jax.Array]:
  """Both convolutions as one: they are linear, with nothing in between.

  With depthwise taps a_i and grouped taps W_j, counted back in time, the
  sample of i + j tokens ago meets diag(a_i) W_j, and the bias of the first
  convolution every W_j.

  Args:
    depthwise_IZ: [taps, Z], the oldest first.
    depthwise_bias_Z: [Z].
    grouped_JGCX: [taps, groups, C in, C out], the oldest first.
    grouped_bias_Z: [Z].

  Returns:
    [G, C in, lags * C out] float32, newest lag first, and the bias [Z].
  """
  grouped_JGCX = grouped_JGCX[::-1]
  taps, groups, c, _ = grouped_JGCX.shape
  depthwise_IGC = depthwise_IZ[::-1].reshape(-1, groups, c)
  lags: list[Any] = [0.0] * (len(depthwise_IGC) + taps - 1)
  for i in range(len(depthwise_IGC)):
    for j in range(taps):
      lags[i + j] += depthwise_IGC[i][..., None] * grouped_JGCX[j]
  first_GC = depthwise_bias_Z.reshape(groups, c)
  bias_GC = jnp.einsum('GC,JGCX->GX', first_GC, grouped_JGCX)
  return jnp.concatenate(lags, axis=-1), bias_GC.reshape(-1) + grouped_bias_Z


def convolve(
  z_BLZ: jax.Array,
  kernel_GCX: jax.Array,
  bias_Z: jax.Array,
  segments_BL: jax.Array | None,
) -> jax.Array:
  """Both causal convolutions, with no non-linearity between them.

  The row is padded by zeros once, on the left, and both run in valid mode:
  before the first token the depthwise output is its bias, not zero. The same
  holds at the start of every segment.

  Args:
    z_BLZ: [B, L, Z] queries and keys.
    kernel_GCX: of `joint_kernel`, with its bias.
    bias_Z: [Z].
    segments_BL: [B, L] or None.

  Returns:
    [B, L, Z] float32.
  """
  groups, c, mixed = kernel_GCX.shape
  context = mixed // c - 1
  padded = jnp.pad(z_BLZ, ((0, 0), (context, 0), (0, 0)))
  # The kernel first: XLA:CPU cannot run the other order in bfloat16.
  p_BLGX = jnp.einsum(
    'GCX,BLGC->BLGX',
    kernel_GCX.astype(z_BLZ.dtype),
    padded.reshape(*padded.shape[:2], groups, c),
    preferred_element_type=_wide(z_BLZ.dtype),
  )
  y_BLZ = bias_Z[None, None]
  for lag in range(context + 1):
    past_BLZ = p_BLGX[..., lag * c : (lag + 1) * c].reshape(padded.shape)
    y_BLZ = y_BLZ + _shift(past_BLZ, lag, context, segments_BL)
  return y_BLZ


def values(
  current_BLX: jax.Array,
  delayed_BLX: jax.Array,
  segments_BL: jax.Array | None,
  first_X: jax.Array | None,
) -> jax.Array:
  """[B, L, 2X] of each token and of the one before; see `delay`."""
  past_BLX = delay(delayed_BLX, segments_BL, first_X)
  return jnp.concatenate([current_BLX, past_BLX], axis=-1)


def delay(
  v_BLX: jax.Array, segments_BL: jax.Array | None, first_X: jax.Array | None
) -> jax.Array:
  """[B, L, X] each token's previous delayed projection.

  Before the first token of a row or segment stands `first_X`, the projection
  of a zero vector; None: it is zero.
  """
  first = jnp.zeros((), v_BLX.dtype)
  if first_X is not None:
    first = first_X.astype(v_BLX.dtype)[None, None]
  past = jnp.pad(v_BLX, ((0, 0), (1, 0), (0, 0)))[:, :-1]
  at_start = starts(segments_BL, 1, v_BLX.shape[1])
  return jnp.where(at_start[..., None], first, past)


def qk_mean(
  q_BLX: jax.Array, k_BLX: jax.Array, num_heads: int, num_kv_heads: int
) -> tuple[jax.Array, jax.Array]:
  """The mean path around the convolutions, from their inputs, in float32.

  Returns:
    [B, L, H, C]: (q_i + k_j) / 2 with j the key head of query head i, and
    [B, L, K, C]: the mean of these over the query heads of each key head.
  """
  batch, length, _ = q_BLX.shape
  wide = _wide(q_BLX.dtype)
  grouped = (batch, length, num_kv_heads, num_heads // num_kv_heads, -1)
  q_BLKGC = q_BLX.astype(wide).reshape(grouped)
  k_BLKC = k_BLX.astype(wide).reshape(batch, length, num_kv_heads, -1)
  mean_BLKGC = (q_BLKGC + k_BLKC[:, :, :, None]) * 0.5
  return (
    mean_BLKGC.reshape(batch, length, num_heads, -1),
    jnp.mean(mean_BLKGC, axis=3),
  )


def normalize(x_BLHC: jax.Array) -> jax.Array:
  """Scales each head to length sqrt(C), in float32."""
  square = jnp.sum(jnp.square(x_BLHC), axis=-1, keepdims=True)
  scale = jax.lax.rsqrt(jnp.maximum(square, NORM_EPS**2))
  return x_BLHC * scale * x_BLHC.shape[-1] ** 0.5


def rotate(
  x_BLHC: jax.Array, cos_BLR: jax.Array, sin_BLR: jax.Array
) -> jax.Array:
  """Rotates the first R channels of each head by halves (NeoX order)."""
  d_rope = cos_BLR.shape[-1]
  turned, kept = x_BLHC[..., :d_rope], x_BLHC[..., d_rope:]
  left, right = jnp.split(turned, 2, axis=-1)
  swapped = jnp.concatenate([-right, left], axis=-1)
  turned = turned * cos_BLR[:, :, None] + swapped * sin_BLR[:, :, None]
  return jnp.concatenate([turned, kept], axis=-1)


def starts(segments_BL: jax.Array | None, lag: int, length: int) -> jax.Array:
  """Whether the token `lag` before is outside of the row or the segment.

  Returns:
    [B, L] bool, or [1, L] where there are no segments.
  """
  if segments_BL is None:
    return (jnp.arange(length) < lag)[None]
  before = jnp.pad(segments_BL, ((0, 0), (lag, 0)), constant_values=-1)
  return segments_BL != before[:, :length]


def _shift(padded_BLX, lag, context, segments_BL):
  """X of `lag` tokens ago, 0 before the segment, from x behind `context`."""
  length = padded_BLX.shape[1] - context
  past_BLX = padded_BLX[:, context - lag : context - lag + length]
  if not lag or segments_BL is None:
    return past_BLX
  at_start = starts(segments_BL, lag, length)
  return jnp.where(at_start[..., None], 0, past_BLX)


def _wide(dtype):
  """At least float32; float64 where a test asks for it."""
  return jnp.promote_types(dtype, jnp.float32)
