# SPDX-License-Identifier: Apache-2.0
"""The meaning of `ops.attention`: all scores at once."""

import jax
import jax.numpy as jnp

# Finite, so that a row without any visible key yields numbers, not NaN.
HIDDEN = -1e30


def attention(
  q_BLHC,
  k_BSKC,
  v_BSKC,
  *,
  q_segments_BL=None,
  k_segments_BS=None,
  offset=0,
  window=None,
) -> jax.Array:
  """See `ops.attention`."""
  batch, length, heads, channels = q_BLHC.shape
  kv_heads = k_BSKC.shape[2]
  q = q_BLHC.reshape(batch, length, kv_heads, heads // kv_heads, channels)
  scores = jnp.einsum(
    'BLKGC,BSKC->BKGLS',
    q,
    k_BSKC,
    preferred_element_type=jnp.promote_types(q.dtype, jnp.float32),
  )
  visible = visible_keys(
    length, k_BSKC.shape[1], q_segments_BL, k_segments_BS, offset, window
  )
  scores = jnp.where(visible[:, None, None], scores * channels**-0.5, HIDDEN)
  weights = jax.nn.softmax(scores, axis=-1).astype(v_BSKC.dtype)
  out = jnp.einsum('BKGLS,BSKC->BLKGC', weights, v_BSKC)
  return out.reshape(batch, length, heads, channels)


def visible_keys(
  length, keys, q_segments_BL, k_segments_BS, offset, window
) -> jax.Array:
  """[B or 1, L, S] bool: which keys each query sees."""
  distance_LS = offset + jnp.arange(length)[:, None] - jnp.arange(keys)[None]
  visible = distance_LS >= 0
  if window is not None:
    visible &= distance_LS < window
  visible = visible[None]
  if q_segments_BL is not None:
    visible &= q_segments_BL[:, :, None] == k_segments_BS[:, None, :]
  return visible
