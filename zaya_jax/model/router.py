# SPDX-License-Identifier: Apache-2.0
"""The ZAYA1 router: a narrow MLP with memory across layers, in float32.

Depth averaging (EDA): each layer adds the mixed router state of the layer
before, times a learned vector. The balancing bias decides who is chosen and
nothing else; no auxiliary loss exists.

Axis letters: B sequences, L positions, D residual width, R router width, E
experts, X router classes: E, and the skip class unless it is off.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from flax import nnx

from zaya_jax import config as config_lib
from zaya_jax.model import layers, two_parts

# By default CUDA multiplies float32 in TF32, whose 11 bits decide other routes.
_linear = functools.partial(layers.linear, precision=jax.lax.Precision.HIGHEST)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Routes:
  """Where each token goes.

  Attributes:
    choice: [B, L] int32 in [0, X).
    weight: [B, L] float32, the unbiased probability of the choice.
    probs: [B, L, X] float32, unbiased.
    state: [B, L, R] float32, for the router of the next layer.
  """

  choice: jax.Array
  weight: jax.Array
  probs: jax.Array
  state: jax.Array


class Router(nnx.Module):
  """The router of one layer."""

  def __init__(self, config: config_lib.ModelConfig, rngs: nnx.Rngs):
    self.eps = config.norm_eps
    d, r, std = config.d_model, config.d_router, config.init_std
    self.down = layers.normal(rngs, std, d, r)
    self.down_bias = layers.constant(0.0, r)
    # In the first layer this meets a zero state: it has no effect there.
    self.eda = layers.constant(1.0, r)
    self.norm = layers.constant(1.0, r)
    self.fc1 = layers.normal(rngs, std, r, r)
    self.fc1_bias = layers.constant(0.0, r)
    self.fc2 = layers.normal(rngs, std, r, r)
    self.fc2_bias = layers.constant(0.0, r)
    self.out = layers.normal(rngs, std, r, config.num_classes)
    # The skip class starts out of reach: p - 1 is below every other p.
    bias = jnp.zeros((config.num_classes,), jnp.float32)
    if config.skip != 'off':
      bias = bias.at[-1].set(-1.0)
    self.balance_bias = layers.BalanceBias(bias)

  def __call__(self, h_BLD: jax.Array, state_BLR: jax.Array) -> Routes:
    """Routes tokens.

    Args:
      h_BLD: [B, L, D] normed residual stream.
      state_BLR: [B, L, R] float32 router state of the layer before, or zeros.
    """
    inner = _linear
    if h_BLD.dtype == jnp.bfloat16:
      inner = _with_fast_gradients
      own_BLR = two_parts.linear(h_BLD, self.down[...])
      own_BLR += self.down_bias[...][None, None]
    else:
      own_BLR = _linear(h_BLD.astype(jnp.float32), self.down, self.down_bias)
    state_BLR = self.mix(own_BLR, state_BLR)
    a_BLR = layers.rms_norm(state_BLR, self.norm, self.eps)
    a_BLR = gelu(inner(a_BLR, self.fc1, self.fc1_bias))
    a_BLR = gelu(inner(a_BLR, self.fc2, self.fc2_bias))
    probs_BLX = softmax(_linear(a_BLR, self.out))
    choice_BL, weight_BL = choose(probs_BLX, self.balance_bias[...])
    return Routes(
      choice=choice_BL, weight=weight_BL, probs=probs_BLX, state=state_BLR
    )

  def mix(self, own_BLR: jax.Array, previous_BLR: jax.Array) -> jax.Array:
    """Depth averaging: own + eda * previous."""
    return own_BLR + self.eda[...][None, None] * previous_BLR


def _with_fast_gradients(x_BLD, w, bias):
  return two_parts.gradients_of(x_BLD, w[...]) + bias[...][None, None]


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
  classes = jnp.arange(probs_BLX.shape[-1], dtype=choice_BL.dtype)
  hit = choice_BL[..., None] == classes[None, None]
  return jnp.sum(jnp.where(hit, probs_BLX, 0), axis=-1)


def count(
  choice_BL: jax.Array, num_classes: int, counts_BL: jax.Array | None
) -> jax.Array:
  """[X] float32 tokens that chose each class, those that count."""
  classes = jnp.arange(num_classes, dtype=choice_BL.dtype)
  hit = choice_BL[..., None] == classes[None, None]
  if counts_BL is not None:
    hit &= counts_BL[..., None]
  return jnp.sum(hit, axis=(0, 1), dtype=jnp.float32)


def gelu(x: jax.Array) -> jax.Array:
  """The exact GELU, by the error function."""
  return jax.nn.gelu(x, approximate=False)
