# SPDX-License-Identifier: Apache-2.0
"""What decoding keeps of the tokens it has seen."""

import dataclasses

import jax
import jax.numpy as jnp

from zaya_jax import config as config_lib


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerCache:
  """The state of one layer, or of all with a leading axis N.

  Attributes:
    k: [B, S, K, C] keys, rotated.
    v: [B, S, K, C] values.
    conv: [B, conv_context, d_qk] last queries and keys before convolution.
    delayed: [B, K * C / 2] delayed value projection of the last token.
  """

  k: jax.Array
  v: jax.Array
  conv: jax.Array
  delayed: jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Cache:
  """The state of a batch.

  Attributes:
    layers: stacked over layers.
    length: int32 scalar, tokens seen; the same for every row of the batch.
    valid: [B, S] bool, False for padding.
    position: [B] int32, the position of the next token of each row.
  """

  layers: LayerCache
  length: jax.Array
  valid: jax.Array
  position: jax.Array


def init_cache(
  config: config_lib.ModelConfig, batch: int, size: int, dtype: jnp.dtype
) -> Cache:
  """An empty cache of `size` tokens for `batch` rows, in `dtype`."""
  n, d_kv = config.num_layers, config.num_kv_heads * config.head_dim
  kv = (n, batch, size, config.num_kv_heads, config.head_dim)
  return Cache(
    layers=LayerCache(
      k=jnp.zeros(kv, dtype),
      v=jnp.zeros(kv, dtype),
      conv=jnp.zeros((n, batch, config.conv_context, config.d_qk), dtype),
      delayed=jnp.zeros((n, batch, d_kv // 2), dtype),
    ),
    length=jnp.int32(0),
    valid=jnp.zeros((batch, size), bool),
    position=jnp.zeros((batch,), jnp.int32),
  )
