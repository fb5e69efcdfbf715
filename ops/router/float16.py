# SPDX-License-Identifier: Apache-2.0
"""`ops.router` in XLA, its float32 products by the matrix units.

A float32 number, times a power of two, is two of float16: its rounding, and
that of what it leaves, 22 bits together. Of the four products of parts that of
both rests is below the last bit; the others are one product of three times as
many terms, which matrix units have done before others have done a third of it.
"""

import jax
import jax.numpy as jnp

from ops.once import once
from ops.router import api, reference, two_parts

_RANGE = 15  # Float16 has all numbers below 2^15, and up to there is room.


def unsupported(h_BLD, *_, **__) -> str | None:
  """Why not."""
  if h_BLD.dtype != jnp.bfloat16:
    return f'it takes bfloat16 tokens, not {h_BLD.dtype}'
  return None


def slower(*_, **__) -> str | None:
  """Why others may be faster."""
  return 'not timed yet'


def router(h_BLD, previous_BLR, down, down_bias, eda, norm, *rest, eps):
  """See `ops.router`."""
  fc1, fc1_bias, fc2, fc2_bias, out, balance = rest
  own_BLR = two_parts.linear(h_BLD, down) + down_bias[None, None]
  state_BLR = reference.mix(own_BLR, eda, previous_BLR)
  # No row of `a` is longer than `most`; nor is one behind a GELU.
  a_BLR = reference.rms_norm(state_BLR, norm, eps)
  most = norm.size**0.5 * jnp.max(jnp.abs(norm))
  for w, bias in ((fc1, fc1_bias), (fc2, fc2_bias)):
    a_BLR = reference.gelu(product(a_BLR, w, most) + bias[None, None])
    most = _length(w) * most + _length(bias)
  probs_BLX = reference.softmax(product(a_BLR, out, most))
  choice_BL, weight_BL = reference.choose(probs_BLX, balance)
  return choice_BL, weight_BL, probs_BLX, state_BLR


@jax.custom_vjp
def product(x_BLD: jax.Array, w_DF: jax.Array, most: jax.Array) -> jax.Array:
  """X @ w of float32 to 22 bits; its gradients by bfloat16 products.

  Args:
    x_BLD: [B, L, D] float32.
    w_DF: [D, F] float32.
    most: [] no number of `x` is larger. It has no gradient.

  Returns:
    [B, L, F] float32, as are the gradients.
  """
  up_x, up_w = (
    _RANGE - api.exponent(x) for x in (most, jnp.max(jnp.abs(w_DF)))
  )
  x_high, x_low = _parts(x_BLD * api.power_of_two(up_x))
  w_high, w_low = _parts(w_DF * api.power_of_two(up_w))
  # The small ones first: their sum is exact for longer.
  y_BLF = two_parts.dot(
    'BLD,DF->BLF',
    jnp.concatenate([x_low, x_high, x_high], axis=-1),
    jnp.concatenate([w_high, w_low, w_high], axis=0),
  )
  down = api.power_of_two(-up_x) * api.power_of_two(-up_w)
  return once(y_BLF) * down


def _product_fwd(x_BLD, w_DF, most):
  return product(x_BLD, w_DF, most), (x_BLD, w_DF)


def _product_bwd(saved, dy_BLF):
  x_BLD, w_DF = saved
  return *two_parts.gradients(x_BLD, w_DF, dy_BLF), None


product.defvjp(_product_fwd, _product_bwd)


def _parts(x):
  """Float32 as its rounding to float16 and that of what it leaves."""
  # Or XLA may take it that rounding there and back leaves what was.
  rounded = jax.lax.reduce_precision(x, exponent_bits=5, mantissa_bits=10)
  return rounded.astype(jnp.float16), (x - rounded).astype(jnp.float16)


def _length(x):
  """That of all numbers as one vector."""
  return jnp.sqrt(jnp.sum(jnp.square(x)))
