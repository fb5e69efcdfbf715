# SPDX-License-Identifier: Apache-2.0
"""The meaning of `ops.router`.

Axis letters as in `ops.router`.
"""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp


def router(h_BLD, previous_BLR, down, down_bias, eda, norm, *rest, eps):
  """See `ops.router`."""
  # At least float32; float64 where a test asks for it.
  h_BLD = h_BLD.astype(jnp.promote_types(h_BLD.dtype, jnp.float32))
  own_BLR = _exact(h_BLD, down) + down_bias[None, None]
  state_BLR = mix(own_BLR, eda, previous_BLR)
  return behind(state_BLR, norm, *rest, eps=eps, products=[_exact] * 3)


def behind(
  state_BLR: jax.Array,
  norm_R: jax.Array,
  *rest: jax.Array,
  eps: float,
  products: Sequence[Callable[[jax.Array, jax.Array], jax.Array]],
) -> tuple[jax.Array, ...]:
  """What `ops.router` makes of the state; `products` with its matrices."""
  fc1, fc1_bias, fc2, fc2_bias, out, balance = rest
  first, second, third = products
  a_BLR = rms_norm(state_BLR, norm_R, eps)
  a_BLR = gelu(first(a_BLR, fc1) + fc1_bias[None, None])
  a_BLR = gelu(second(a_BLR, fc2) + fc2_bias[None, None])
  probs_BLX = softmax(third(a_BLR, out))
  choice_BL, weight_BL = choose(probs_BLX, balance)
  return choice_BL, weight_BL, probs_BLX, state_BLR


def _exact(x_BLD, w_DF):
  exact = jax.lax.Precision.HIGHEST
  return jnp.einsum('BLD,DF->BLF', x_BLD, w_DF, precision=exact)


def mix(
  own_BLR: jax.Array, eda_R: jax.Array, previous_BLR: jax.Array
) -> jax.Array:
  """Depth averaging: own + eda * previous."""
  return own_BLR + eda_R[None, None] * previous_BLR


def rms_norm(x_BLR: jax.Array, scale_R: jax.Array, eps: float) -> jax.Array:
  """X / sqrt(mean(x^2) + eps) * scale."""
  mean_square = jnp.mean(jnp.square(x_BLR), axis=-1, keepdims=True)
  return x_BLR * jax.lax.rsqrt(mean_square + eps) * scale_R[None, None]


def gelu(x: jax.Array) -> jax.Array:
  """The exact GELU, by the error function."""
  return jax.nn.gelu(x, approximate=False)


def softmax(logits_BLX: jax.Array) -> jax.Array:
  """Probabilities over all classes, the skip class included."""
  return jax.nn.softmax(logits_BLX, axis=-1)


def choose(
  probs_BLX: jax.Array, bias_X: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """Top-1 of the biased probabilities, and its unbiased probability."""
  biased = jax.lax.stop_gradient(probs_BLX) + bias_X[None, None]
  choice_BL = jnp.argmax(biased, axis=-1).astype(jnp.int32)
  weight_BL = pick(probs_BLX, choice_BL)
  return choice_BL, weight_BL


def pick(probs_BLX: jax.Array, choice_BL: jax.Array) -> jax.Array:
  """probs[..., choice], as a masked sum: its gradient is not a scatter."""
  hit = chosen(choice_BL, probs_BLX.shape[-1])
  return jnp.sum(jnp.where(hit, probs_BLX, 0), axis=-1)


def chosen(choice_BL: jax.Array, num_classes: int) -> jax.Array:
  """[B, L, X] whether a token chose a class."""
  classes = jnp.arange(num_classes, dtype=choice_BL.dtype)
  return choice_BL[..., None] == classes[None, None]
