# SPDX-License-Identifier: Apache-2.0
"""What the kernels of attention for Hopper GPUs mean, in jax.numpy."""

import jax.numpy as jnp

from ops.attention import reference

_LOG2_E = 1.4426950408889634


def forward(inputs, turns):
  """See `forward.forward`."""
  del turns
  weights = jnp.exp2(_scores(inputs))
  total = jnp.sum(weights, axis=-1)
  out = jnp.einsum('BHLS,BSHC->BLHC', weights, _each(inputs, 'v'))
  out /= jnp.maximum(total, 1e-30).swapaxes(1, 2)[..., None]
  lse = jnp.log2(jnp.maximum(total, 1e-30))
  return {'out': out.astype(inputs['q'].dtype), 'lse': lse}


def of_keys(inputs, *, save):
  """See `keys.of_keys`; 'd_scores' are [B, H, L, S]."""
  weights, d_scores = _d_scores(inputs)
  q, d_out = (inputs[name].astype(jnp.float32) for name in ('q', 'd_out'))
  d_k = jnp.einsum('BHLS,BLHC->BSHC', d_scores, q) * q.shape[-1] ** -0.5
  d_v = jnp.einsum('BHLS,BLHC->BSHC', weights, d_out)
  found = {'k': _sum(inputs, d_k), 'v': _sum(inputs, d_v)}
  return found | ({'d_scores': d_scores} if save else {})


def of_queries(inputs, turns):
  """See `queries.of_queries`."""
  return of_queries_saved(inputs, _d_scores(inputs)[1], turns)


def of_queries_saved(inputs, d_scores, turns):
  """See `queries.of_queries_saved`."""
  del turns
  q = inputs['q']
  d_q = jnp.einsum('BHLS,BSHC->BLHC', d_scores, _each(inputs, 'k'))
  return (d_q * q.shape[-1] ** -0.5).astype(q.dtype)


def _d_scores(inputs):
  weights = jnp.exp2(_scores(inputs) - inputs['lse'][..., None])
  d_out = inputs['d_out'].astype(jnp.float32)
  slopes = jnp.einsum('BLHC,BSHC->BHLS', d_out, _each(inputs, 'v'))
  return weights, weights * (slopes - inputs['delta'][..., None])


def _scores(inputs):
  """[B, H, L, S] base 2; -inf where the key is not visible."""
  q = inputs['q'].astype(jnp.float32)
  scores = jnp.einsum('BLHC,BSHC->BHLS', q, _each(inputs, 'k'))
  segments = (inputs.get(f'{side}_segments') for side in 'qk')
  window = inputs['window'][0] if 'window' in inputs else None
  visible = reference.visible_keys(*scores.shape[2:], *segments, 0, window)
  scale = q.shape[-1] ** -0.5 * _LOG2_E
  return jnp.where(visible[:, None], scores * scale, -jnp.inf)


def _each(inputs, name):
  """Keys or values of each query head, float32."""
  group = inputs['q'].shape[2] // inputs[name].shape[2]
  return jnp.repeat(inputs[name].astype(jnp.float32), group, axis=2)


def _sum(inputs, x_BSHC):
  """Over the query heads of a group."""
  k = inputs['k']
  batch, keys, kv_heads, channels = k.shape
  x = x_BSHC.reshape(batch, keys, kv_heads, -1, channels)
  return x.sum(axis=3).astype(k.dtype)
