# SPDX-License-Identifier: Apache-2.0
"""Compressed convolutional attention (CCA; arXiv 2510.04476).

Queries and keys live in a narrow latent space, are mixed over time by two
causal convolutions, and keep a mean path around them. Half of the value
channels come from the previous token.

Axis letters: B sequences, L positions, D residual width, H query heads, K
key/value heads, C channels of a head, Z = (H + K) * C channels that the
convolutions mix (query heads, then key heads), P = Z + K * C with the values, S
key positions.
"""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx

import ops
from ops.cca import reference as cca_ops
from zaya_jax import config as config_lib
from zaya_jax.model import layers
from zaya_jax.parallel.context import divided as divided_lib


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
    self.temperature = layers.constant(config.temperature_init, k)
    if config.attention == 'gqa':
      return
    # Tap 0 multiplies the oldest sample.
    self.conv_depthwise = layers.normal(
      rngs, std, config.conv_depthwise, config.d_qk
    )
    self.conv_depthwise_bias = layers.constant(0.0, config.d_qk)
    self.conv_grouped = layers.normal(
      rngs, std, config.conv_grouped, h + k, c, c
    )
    self.conv_grouped_bias = layers.constant(0.0, config.d_qk)

  def __call__(
    self, h_BLD: jax.Array, context: Context, slides: jax.Array | None
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
    q_BLHC, k_BLKC, v_BLKC = self.prologue(
      self.project(h_BLD), context, _rope(context.rope, slides)
    )
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

  def project(self, h_BLD: jax.Array) -> jax.Array:
    """[B, L, P] queries and keys, values of this and of the next token."""
    names = ('q', 'k', 'v_current', 'v_delayed')
    return layers.linear(
      h_BLD,
      jnp.concatenate([getattr(self, name)[...] for name in names], axis=-1),
      self._biases(names),
    )

  def prologue(
    self,
    projected_BLP: jax.Array,
    context: Context,
    rope: tuple[jax.Array, jax.Array],
  ) -> tuple[jax.Array, jax.Array, jax.Array]:
    """`ops.cca_prologue`; one message where tokens are divided.

    Args:
      projected_BLP: of `project`.
      context: segments, and what is on other devices.
      rope: cosines and sines.
    """
    if self.config.attention == 'gqa':
      return plain(self.config, projected_BLP, self.temperature[...], rope)
    kernel = self.joint_kernel()
    first = self._bias('v_delayed')
    first = None if first is None else first[...]

    def local(projected_BLP, segments_BL, cos, sin):
      return ops.cca_prologue(
        *(projected_BLP, *kernel, self.temperature[...]),
        *(cos, sin, segments_BL, first),
      )

    if context.divided is None:
      return local(projected_BLP, context.segments, *rope)
    return context.divided.look_back(
      local, projected_BLP, context.segments, *rope
    )

  def joint_kernel(self) -> tuple[jax.Array, jax.Array]:
    """Both convolutions as one, and its bias."""
    return cca_ops.joint_kernel(
      self.conv_depthwise[...],
      self.conv_depthwise_bias[...],
      self.conv_grouped[...],
      self.conv_grouped_bias[...],
    )

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


def plain(
  config: config_lib.ModelConfig,
  projected_BLP: jax.Array,
  temperature_K: jax.Array,
  rope: tuple[jax.Array, jax.Array],
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Queries, keys and values of `gqa`: as of CCA, each from its token alone.

  Args:
    config: of the model.
    projected_BLP: of `CCA.project`.
    temperature_K: of the keys.
    rope: cosines and sines.
  """
  c, k = config.head_dim, config.num_kv_heads
  heads = projected_BLP.reshape(*projected_BLP.shape[:2], -1, c)
  wide = heads.astype(jnp.promote_types(heads.dtype, jnp.float32))
  q_BLHC, k_BLKC = wide[:, :, : config.num_heads], wide[:, :, -2 * k : -k]
  q_BLHC, k_BLKC = cca_ops.normalize(q_BLHC), cca_ops.normalize(k_BLKC)
  k_BLKC *= temperature_K[None, None, :, None]
  turn = lambda x: cca_ops.rotate(x, *rope).astype(heads.dtype)
  return turn(q_BLHC), turn(k_BLKC), heads[:, :, -k:]


def _rope(rope, slides):
  full, sliding = rope
  if slides is None:
    return full
  return jax.tree.map(lambda f, s: jnp.where(slides, s, f), full, sliding)
