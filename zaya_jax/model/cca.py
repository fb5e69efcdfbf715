# SPDX-License-Identifier: Apache-2.0
"""Compressed convolutional attention (CCA; arXiv 2510.04476).

Queries and keys live in a narrow latent space, are mixed over time by two
causal convolutions, and keep a mean path around them. Half of the value
channels come from the previous token.

Axis letters: B sequences, L positions, D residual width, H query heads, K
key/value heads, C channels of a head, Z = (H + K) * C channels that the
convolutions mix (query heads, then key heads), S key positions.
"""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx

import ops
from zaya_jax import config as config_lib
from zaya_jax.context import divided as divided_lib
from zaya_jax.model import layers

# Lower bound of a head's norm; Hugging Face takes the same for float32.
_NORM_EPS = float(jnp.finfo(jnp.float32).eps)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Context:
  """What every attention layer needs to know of the batch.

  Attributes:
    mask: [B, L] bool, False for padding; None: no padding.
    segments: [B, L] int, the document of each token; None: one each row.
    attend_segments: [B, L] int or bool: tokens attend to those of the same
      value; None: to all.
    rope: cosines and sines, [B, L, R], of full and of sliding layers.
    divided: what is known of tokens on other devices; None: there are none.
  """

  mask: jax.Array | None
  segments: jax.Array | None
  attend_segments: jax.Array | None
  rope: tuple[tuple[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]
  divided: divided_lib.Divided | None = None


class CCA(nnx.Module):
  """The attention of one layer."""

  def __init__(self, config: config_lib.ModelConfig, rngs: nnx.Rngs):
    self.config = config
    d, c, std = config.d_model, config.head_dim, config.init_std
    h, k = config.num_heads, config.num_kv_heads
    self.q = layers.normal(rngs, std, d, h * c)
    self.k = layers.normal(rngs, std, d, k * c)
    self.v_current = layers.normal(rngs, std, d, k * c // 2)
    self.v_delayed = layers.normal(rngs, std, d, k * c // 2)
    self.out = layers.normal(rngs, std, h * c, d)
    if config.attention_bias:
      self.q_bias = layers.constant(0.0, h * c)
      self.k_bias = layers.constant(0.0, k * c)
      self.v_current_bias = layers.constant(0.0, k * c // 2)
      self.v_delayed_bias = layers.constant(0.0, k * c // 2)
      self.out_bias = layers.constant(0.0, d)
    # Tap 0 multiplies the oldest sample.
    self.conv_depthwise = layers.normal(
      rngs, std, config.conv_depthwise, config.d_qk
    )
    self.conv_depthwise_bias = layers.constant(0.0, config.d_qk)
    self.conv_grouped = layers.normal(
      rngs, std, config.conv_grouped, h + k, c, c
    )
    self.conv_grouped_bias = layers.constant(0.0, config.d_qk)
    self.temperature = layers.constant(config.temperature_init, k)

  def __call__(
    self,
    h_BLD: jax.Array,
    context: Context,
    slides: jax.Array | None,
  ) -> jax.Array:
    """Attends.

    Args:
      h_BLD: [B, L, D] normed residual stream.
      context: masks, segments and rotations of the batch.
      slides: bool scalar, whether this layer slides; None: no layer does.

    Returns:
      [B, L, D].
    """
    if context.mask is not None:
      h_BLD = jnp.where(context.mask[..., None], h_BLD, 0)
    q_BLHC, k_BLKC, v_BLKC = self.project(h_BLD, context)
    cos, sin = _rope(context.rope, slides)
    q_BLHC = layers.rotate(q_BLHC, cos, sin).astype(h_BLD.dtype)
    k_BLKC = layers.rotate(k_BLKC, cos, sin).astype(h_BLD.dtype)
    window = self._window(slides)
    if context.divided is not None:
      o_BLHC = context.divided.attention(q_BLHC, k_BLKC, v_BLKC, window)
    else:
      o_BLHC = ops.attention(
        q_BLHC,
        k_BLKC,
        v_BLKC,
        q_segments_BL=context.attend_segments,
        k_segments_BS=context.attend_segments,
        window=window,
      )
    o_BLX = o_BLHC.reshape(*o_BLHC.shape[:2], -1)
    return layers.linear(o_BLX, self.out, self._bias('out'))

  def project(
    self, h_BLD: jax.Array, context: Context
  ) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Queries, keys and values of this layer.

    Returns:
      Queries [B, L, H, C] and keys [B, L, K, C] in float32, normalized and not
      yet rotated; values [B, L, K, C].
    """
    heads = (self.config.num_heads, self.config.num_kv_heads)
    names = ('q', 'k', 'v_current', 'v_delayed')
    widths = [getattr(self, name).shape[-1] for name in names]
    out_BLX = layers.linear(
      h_BLD,
      jnp.concatenate([getattr(self, name)[...] for name in names], axis=-1),
      self._biases(names),
    )
    z_BLZ, current_BLX, delayed_BLX = jnp.split(
      out_BLX, [sum(widths[:2]), sum(widths[:3])], axis=-1
    )
    y_BLZ, past_BLX = self.look_back(z_BLZ, delayed_BLX, context)
    mean_q, mean_k = qk_mean(*jnp.split(z_BLZ, widths[:1], axis=-1), *heads)
    y_q, y_k = jnp.split(y_BLZ, widths[:1], axis=-1)
    q_BLHC = normalize(y_q.reshape(mean_q.shape) + mean_q)
    k_BLKC = normalize(y_k.reshape(mean_k.shape) + mean_k)
    k_BLKC *= self.temperature[...][None, None, :, None]
    v_BLKC = jnp.concatenate([current_BLX, past_BLX], axis=-1)
    return q_BLHC, k_BLKC, v_BLKC.reshape(*mean_k.shape)

  def look_back(
    self, z_BLZ: jax.Array, v_BLX: jax.Array, context: Context
  ) -> tuple[jax.Array, jax.Array]:
    """`convolve` and `delay`; one message where tokens are divided."""
    if context.divided is None:
      y_BLZ = self.convolve(z_BLZ, context.segments)
      return y_BLZ, self.delay(v_BLX, context.segments)
    width = z_BLZ.shape[-1]

    def both(x_BLX, segments_BL):
      y_BLZ = self.convolve(x_BLX[..., :width], segments_BL)
      past_BLX = self.delay(x_BLX[..., width:], segments_BL)
      return jnp.concatenate([y_BLZ, past_BLX.astype(y_BLZ.dtype)], axis=-1)

    x_BLX = jnp.concatenate([z_BLZ, v_BLX], axis=-1)
    out_BLX = context.divided.look_back(both, x_BLX, context.segments)
    return out_BLX[..., :width], out_BLX[..., width:].astype(v_BLX.dtype)

  def convolve(
    self, z_BLZ: jax.Array, segments_BL: jax.Array | None
  ) -> jax.Array:
    """Both causal convolutions, with no non-linearity between them.

    The row is padded by zeros once, on the left, and both run in valid mode:
    before the first token the depthwise output is its bias, not zero. The same
    holds at the start of every segment.

    Args:
      z_BLZ: [B, L, Z] queries and keys.
      segments_BL: [B, L] or None.

    Returns:
      [B, L, Z] float32.
    """
    context = self.config.conv_context
    kernel_GCX, bias_Z = joint_kernel(
      self.conv_depthwise[...],
      self.conv_depthwise_bias[...],
      self.conv_grouped[...],
      self.conv_grouped_bias[...],
    )
    padded = jnp.pad(z_BLZ, ((0, 0), (context, 0), (0, 0)))
    groups, c, _ = kernel_GCX.shape
    # The kernel first: XLA:CPU cannot run the other order in bfloat16.
    p_BLGX = jnp.einsum(
      'GCX,BLGC->BLGX',
      kernel_GCX.astype(z_BLZ.dtype),
      padded.reshape(*padded.shape[:2], groups, c),
      preferred_element_type=jnp.float32,
    )
    y_BLZ = bias_Z[None, None]
    for lag in range(context + 1):
      past_BLZ = p_BLGX[..., lag * c : (lag + 1) * c].reshape(padded.shape)
      y_BLZ = y_BLZ + _shift(past_BLZ, lag, context, segments_BL)
    return y_BLZ

  def delay(self, v_BLX: jax.Array, segments_BL: jax.Array | None) -> jax.Array:
    """[B, L, X] each token's previous delayed projection.

    Before the first token of a row or segment stands the projection of a zero
    vector: the bias, where there is one.
    """
    bias = self._bias('v_delayed')
    first = jnp.zeros((), v_BLX.dtype)
    if bias is not None:
      first = bias[...].astype(v_BLX.dtype)[None, None]
    past = jnp.pad(v_BLX, ((0, 0), (1, 0), (0, 0)))[:, :-1]
    at_start = _starts(segments_BL, 1, v_BLX.shape[1])
    return jnp.where(at_start[..., None], first, past)

  def _biases(self, names: tuple[str, ...]) -> jax.Array | None:
    if not self.config.attention_bias:
      return None
    return jnp.concatenate([self._bias(name)[...] for name in names])

  def _bias(self, name: str) -> nnx.Param | None:
    return getattr(self, f'{name}_bias', None)

  def _window(self, slides):
    if slides is None:
      return None
    return jnp.where(slides, self.config.sliding_window, jnp.iinfo('int32').max)


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
  lags = [0.0] * (len(depthwise_IGC) + taps - 1)
  for i in range(len(depthwise_IGC)):
    for j in range(taps):
      lags[i + j] += depthwise_IGC[i][..., None] * grouped_JGCX[j]
  first_GC = depthwise_bias_Z.reshape(groups, c)
  bias_GC = jnp.einsum('GC,JGCX->GX', first_GC, grouped_JGCX)
  return jnp.concatenate(lags, axis=-1), bias_GC.reshape(-1) + grouped_bias_Z


def qk_mean(
  q_BLX: jax.Array, k_BLX: jax.Array, num_heads: int, num_kv_heads: int
) -> tuple[jax.Array, jax.Array]:
  """The mean path around the convolutions, from their inputs, in float32.

  Returns:
    [B, L, H, C]: (q_i + k_j) / 2 with j the key head of query head i, and
    [B, L, K, C]: the mean of these over the query heads of each key head.
  """
  batch, length, _ = q_BLX.shape
  grouped = (batch, length, num_kv_heads, num_heads // num_kv_heads, -1)
  q_BLKGC = q_BLX.astype(jnp.float32).reshape(grouped)
  k_BLKC = k_BLX.astype(jnp.float32).reshape(batch, length, num_kv_heads, -1)
  mean_BLKGC = (q_BLKGC + k_BLKC[:, :, :, None]) * 0.5
  return (
    mean_BLKGC.reshape(batch, length, num_heads, -1),
    jnp.mean(mean_BLKGC, axis=3),
  )


def normalize(x_BLHC: jax.Array) -> jax.Array:
  """Scales each head to length sqrt(C), in float32."""
  square = jnp.sum(jnp.square(x_BLHC), axis=-1, keepdims=True)
  scale = jax.lax.rsqrt(jnp.maximum(square, _NORM_EPS**2))
  return x_BLHC * scale * x_BLHC.shape[-1] ** 0.5


def _shift(padded_BLX, lag, context, segments_BL):
  """X of `lag` tokens ago, 0 before the segment, from x behind `context`."""
  length = padded_BLX.shape[1] - context
  past_BLX = padded_BLX[:, context - lag : context - lag + length]
  if not lag or segments_BL is None:
    return past_BLX
  return jnp.where(_starts(segments_BL, lag, length)[..., None], 0, past_BLX)


def _starts(segments_BL, lag, length):
  """Whether the token `lag` before is outside of the row or the segment."""
  if segments_BL is None:
    return (jnp.arange(length) < lag)[None]
  before = jnp.pad(segments_BL, ((0, 0), (lag, 0)), constant_values=-1)
  return segments_BL != before[:, :length]


def _rope(rope, slides):
  full, sliding = rope
  if slides is None:
    return full
  return jax.tree.map(lambda f, s: jnp.where(slides, s, f), full, sliding)
