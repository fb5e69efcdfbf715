# SPDX-License-Identifier: Apache-2.0
"""CCA of new tokens, from those before that the cache has kept.

Axis letters: those of `decoding.network`; T samples before the new tokens.
"""

from typing import Any

import jax
import jax.numpy as jnp

from ops.cca import reference as cca_ops
from zaya_jax import config as config_lib
from zaya_jax.inference.decoding import cache as cache_lib


def look_back(
  config: config_lib.ModelConfig,
  w: dict[str, Any],
  out_BLX: jax.Array,
  mask_BL: jax.Array | None,
  rope: tuple[jax.Array, jax.Array],
  conv_BTZ: jax.Array,
  delayed_BX: jax.Array,
  end_B: jax.Array | None,
) -> tuple[jax.Array, ...]:
  """Queries, keys and values, and what the next token needs of these.

  Args:
    config: of the model.
    w: of the attention of a layer, of `network.prepare`.
    out_BLX: the projections of the new tokens.
    mask_BL: False for padding; None: there is none.
    rope: cosine and sine, [B, L, R].
    conv_BTZ: samples before these tokens.
    delayed_BX: what the first of them takes from the token before.
    end_B: of the new tokens of each row; None: all.

  Returns:
    [B, L, H, C], twice [B, L, K, C], [B, T, Z] and [B, X].
  """
  split = [config.num_heads * config.head_dim, config.d_qk]
  q_BLX, k_BLX, v_BLX = jnp.split(out_BLX, split, axis=-1)
  z_BLZ = out_BLX[..., : config.d_qk]
  if mask_BL is not None and config.attention_bias:
    # Padding is a bias now; before a text the convolutions see zeros.
    z_BLZ = jnp.where(mask_BL[..., None], z_BLZ, 0)
  past_BTZ = jnp.concatenate([conv_BTZ, z_BLZ], axis=1)
  q_BLHC, k_BLKC = _queries_and_keys(config, w, past_BTZ, q_BLX, k_BLX, rope)
  current_BLX, delayed_BLX = jnp.split(v_BLX, 2, axis=-1)
  delayed_BLX = jnp.concatenate([delayed_BX[:, None], delayed_BLX], axis=1)
  v_BLKC = jnp.concatenate([current_BLX, delayed_BLX[:, :-1]], axis=-1)
  return (
    *(q_BLHC, k_BLKC, v_BLKC.reshape(k_BLKC.shape)),
    cache_lib.tail(past_BTZ, end_B, conv_BTZ.shape[1]),
    cache_lib.tail(delayed_BLX, end_B, 1)[:, 0],
  )


def _queries_and_keys(config, w, past_BTZ, q_BLX, k_BLX, rope):
  """[B, L, H, C] and [B, L, K, C] float32 of any number of tokens."""
  heads, length = config.num_heads, q_BLX.shape[1]
  y_BLZ = _convolve(w, past_BTZ, length)
  mean_q, mean_k = cca_ops.qk_mean(q_BLX, k_BLX, heads, config.num_kv_heads)
  y_q, y_k = jnp.split(y_BLZ, [q_BLX.shape[-1]], axis=-1)
  q_BLHC = cca_ops.normalize(y_q.reshape(mean_q.shape) + mean_q)
  k_BLKC = cca_ops.normalize(y_k.reshape(mean_k.shape) + mean_k)
  k_BLKC *= w['temperature'][None, None, :, None]
  q_BLHC = cca_ops.rotate(q_BLHC, *rope)
  k_BLKC = cca_ops.rotate(k_BLKC, *rope)
  return q_BLHC, k_BLKC


def _convolve(w, past_BTZ, length):
  """[B, L, Z] float32: both convolutions, of the last L samples."""
  groups, c, mixed = w['kernel'].shape
  past_BTGC = past_BTZ.reshape(*past_BTZ.shape[:2], groups, c)
  lags = mixed // c
  windows_BLGX = jnp.concatenate(
    [past_BTGC[:, lag : lag + length] for lag in range(lags)], axis=-1
  )
  y_BLGC = jnp.einsum(
    'BLGX,GCX->BLGC',
    windows_BLGX,
    w['kernel'],
    preferred_element_type=jnp.float32,
  )
  return (
    y_BLGC.reshape(past_BTZ.shape[0], length, -1) + w['kernel_bias'][None, None]
  )
