# SPDX-License-Identifier: Apache-2.0
"""`ops.router` in XLA, its float32 products by the matrix units.

A float32 number, times a power of two, is two of float16: its rounding, and
that of what it leaves, 22 bits together. Of the four products of parts that of
both rests is below the last bit; the others are one product of three times as
many terms, which matrix units have done before others have done a third of it.
"""

import functools

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
  """Why others come first."""
  return 'it shortens a step by 1 % at most'


def router(h_BLD, previous_BLR, down, down_bias, eda, norm, *rest, eps):
  """See `ops.router`."""
  own_BLR = two_parts.linear(h_BLD, down) + down_bias[None, None]
  state_BLR = reference.mix(own_BLR, eda, previous_BLR)
  # No row of what is multiplied is longer; a GELU makes none longer.
  most = [norm.size**0.5 * jnp.max(jnp.abs(norm))]
  for w, bias in (rest[:2], rest[2:4]):
    most.append(_length(w) * most[-1] + _length(bias))
  products = [functools.partial(product, most=bound) for bound in most]
  return reference.behind(state_BLR, norm, *rest, eps=eps, products=products)


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
  x_high, x_low = two_parts.parts(x_BLD * api.power_of_two(up_x), jnp.float16)
  w_high, w_low = two_parts.parts(w_DF * api.power_of_two(up_w), jnp.float16)
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


def _length(x):
  """That of all numbers as one vector."""
  return jnp.sqrt(jnp.sum(jnp.square(x)))
