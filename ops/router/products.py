# SPDX-License-Identifier: Apache-2.0
"""Back through the router by XLA: matrix products, and what is fused around.

For `api.Kernels`. Products are those of `two_parts`.
"""

import jax
import jax.numpy as jnp

from ops.router import api, reference, two_parts


def backward(given: api.Backward, eps: float) -> api.Gradients:
  """See `api.Kernels`."""
  a2, slope2 = _gelu_and_slope(given.z2)
  dz2 = _product(given.d_logits, given.out) * slope2
  a1, slope1 = _gelu_and_slope(given.z1)
  dz1 = _product(dz2, given.fc2) * slope1
  d_unit = _product(dz1, given.fc1)
  state = given.state
  rms = jax.lax.rsqrt(jnp.mean(state * state, axis=1, keepdims=True) + eps)
  unit = state * rms
  mean = jnp.mean(d_unit * unit, axis=1, keepdims=True)
  d_state = given.d_state + rms * (d_unit - unit * mean)
  sums = [dz1, dz2, d_state, d_state * given.previous]
  d_out = two_parts.d_weights(_beside(a2)[None], _beside(given.d_logits)[None])
  return api.Gradients(
    three=_three(d_state),
    two=_beside(d_state),
    d_previous=given.eda[None] * d_state,
    unit=_beside(unit),
    dz1=_beside(dz1),
    a1=_beside(a1),
    dz2=_beside(dz2),
    sums=jnp.stack([jnp.sum(each, axis=0) for each in sums])[None],
    d_out=d_out[None],
  )


def _gelu_and_slope(z):
  value, back = jax.vjp(reference.gelu, z)
  return value, back(jnp.ones_like(z))[0]


def _product(x_TK, w):
  """Of [T, K] float32 with the parts [2, K, N] of a matrix."""
  wide = jnp.concatenate([w[0], w[0], w[1]])
  return two_parts.dot('TK,KN->TN', _three(x_TK), wide)


def _three(x):
  high, low = two_parts.parts(x)
  return jnp.concatenate([high, low, high], axis=1)


def _beside(x):
  return jnp.concatenate(two_parts.parts(x), axis=1)
