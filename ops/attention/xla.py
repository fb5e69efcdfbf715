# SPDX-License-Identifier: Apache-2.0
"""Attention over blocks of queries that leaves out the keys of the future.

Each block of queries meets only the keys up to its own end, which saves up to
half of the work, and its scores are normalized after the product with the
values, which saves a pass over them. The backward pass makes the scores anew.
"""

import functools

import jax
import jax.numpy as jnp

from ops.attention import api, reference

# At most this many blocks: they are unrolled, and more save little.
_MAX_BLOCKS = 4
_MIN_ROWS = 128


def attention(q_BLHC, k_BSKC, v_BSKC, **options) -> jax.Array:
  """See `ops.attention`. What it does not take, the reference does."""
  if api.unsupported(q_BLHC, k_BSKC, options.get('offset', 0)) is not None:
    return reference.attention(q_BLHC, k_BSKC, v_BSKC, **options)
  q_segments_BL, window = options.get('q_segments_BL'), options.get('window')
  batch, length, heads, channels = q_BLHC.shape
  kv_heads = k_BSKC.shape[2]
  scaled = (q_BLHC * channels**-0.5).astype(q_BLHC.dtype)
  q_BKGLC = scaled.reshape(
    batch, length, kv_heads, heads // kv_heads, channels
  ).transpose(0, 2, 3, 1, 4)
  keys = k_BSKC.swapaxes(1, 2), v_BSKC.swapaxes(1, 2)
  rows = max(_MIN_ROWS, -(-length // _MAX_BLOCKS))
  out = []
  for start in range(0, length, rows):
    end = min(start + rows, length)
    segments = (None, None)
    if q_segments_BL is not None:
      k_segments_BS = options['k_segments_BS']
      segments = q_segments_BL[:, start:end], k_segments_BS[:, :end]
    visible = reference.visible_keys(end - start, end, *segments, start, window)
    q, k, v = q_BKGLC[:, :, :, start:end], *(x[:, :, :end] for x in keys)
    out.append(_block(q, k, v, visible[:, None, None]))
  o_BKGLC = jnp.concatenate(out, axis=3)
  return o_BKGLC.transpose(0, 3, 1, 2, 4).reshape(q_BLHC.shape)


@jax.custom_vjp
def _block(q, k, v, visible):
  """Q [B, K, G, L, C] against k and v [B, K, S, C]; [B, K, G, L, C]."""
  weights, total = _weights(q, k, visible)
  out = _dot('BKGLS,BKSC->BKGLC', weights.astype(v.dtype), v)
  return (out / total).astype(v.dtype)


def _weights(q, k, visible):
  scores = _dot('BKGLC,BKSC->BKGLS', q, k)
  scores = jnp.where(visible, scores, reference.HIDDEN)
  weights = jnp.exp(scores - jnp.max(scores, axis=-1, keepdims=True))
  return weights, jnp.sum(weights, axis=-1, keepdims=True)


def _block_fwd(q, k, v, visible):
  out = _block(q, k, v, visible)
  return out, (q, k, v, visible, out)


def _block_bwd(saved, d_out):
  q, k, v, visible, out = saved
  weights, total = _weights(q, k, visible)
  d_out = d_out.astype(jnp.float32)
  delta = jnp.sum(d_out * out, axis=-1, keepdims=True)
  d_out = (d_out / total).astype(v.dtype)
  d_v = _dot('BKGLS,BKGLC->BKSC', weights.astype(v.dtype), d_out)
  d_weights = _dot('BKGLC,BKSC->BKGLS', d_out, v) - delta / total
  d_scores = (weights * d_weights).astype(q.dtype)
  d_q = _dot('BKGLS,BKSC->BKGLC', d_scores, k)
  d_k = _dot('BKGLS,BKGLC->BKSC', d_scores, q)
  return d_q.astype(q.dtype), d_k.astype(k.dtype), d_v.astype(v.dtype), None


_block.defvjp(_block_fwd, _block_bwd)

_dot = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)
