# SPDX-License-Identifier: Apache-2.0
"""The ZAYA1 router: a narrow MLP with memory across layers, in float32.

Depth averaging (EDA): each layer adds the mixed router state of the layer
before, times a learned vector. The balancing bias decides who is chosen and
nothing else; an auxiliary loss exists only to compare with.

Axis letters: B sequences, L positions, D residual width, R router width, E
experts, X router classes: E, and the skip class unless it is off.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

import ops
from ops.router import reference
from zaya_jax import config as config_lib
from zaya_jax.model import layers


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


class Load(NamedTuple):
  """What tokens ask of the router of a layer.

  Attributes:
    tokens: [X] float32 tokens that chose each class.
    sample: [S, X] float32 biased probabilities of some tokens; -inf of those
      that do not count.
    likely: [E] float32 sums over the tokens that count of the unbiased
      probability of each expert, that of any expert being 1, with their
      gradient; None: nobody asked for them.
  """

  tokens: jax.Array
  sample: jax.Array
  likely: jax.Array | None = None


class Router(nnx.Module):
  """The router of one layer."""

  def __init__(self, config: config_lib.ModelConfig, rngs: nnx.Rngs):
    self.config = config
    d, r, std = config.d_model, config.d_router, config.init_std
    if config.router == 'mlp':
      self.down = layers.normal(rngs, std, d, r)
      self.down_bias = layers.constant(0.0, r)
      # In the first layer this meets a zero state: it has no effect there.
      self.eda = layers.constant(float(config.eda), r)
      self.norm = layers.constant(1.0, r)
      self.fc1 = layers.normal(rngs, std, r, r)
      self.fc1_bias = layers.constant(0.0, r)
      self.fc2 = layers.normal(rngs, std, r, r)
      self.fc2_bias = layers.constant(0.0, r)
    last = r if config.router == 'mlp' else d
    self.out = layers.normal(rngs, std, last, config.num_classes)
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
    if self.config.router == 'linear':
      exact = jax.lax.Precision.HIGHEST
      h_BLD = h_BLD.astype(jnp.float32)
      logits_BLX = layers.linear(h_BLD, self.out, precision=exact)
      probs_BLX = reference.softmax(logits_BLX)
      choice_BL, weight_BL = reference.choose(probs_BLX, self.balance_bias[...])
    else:
      choice_BL, weight_BL, probs_BLX, state_BLR = ops.router(
        h_BLD, state_BLR, *self._weights(), eps=self.config.norm_eps
      )
    return Routes(
      choice=choice_BL, weight=weight_BL, probs=probs_BLX, state=state_BLR
    )

  def _weights(self):
    names = 'down down_bias eda norm fc1 fc1_bias fc2 fc2_bias out balance_bias'
    for name in names.split():
      w = getattr(self, name)[...]
      learns = name != 'eda' or self.config.eda
      yield w if learns else jax.lax.stop_gradient(w)


def measure(
  routes: Routes,
  bias_X: jax.Array,
  counts_BL: jax.Array | None,
  sample_every: int,
  likely_of: int = 0,
) -> Load:
  """The load of a layer; no gradient reaches it, but for `likely`.

  Args:
    routes: of the layer.
    bias_X: its balancing bias.
    counts_BL: [B, L] bool, tokens that count; None: all.
    sample_every: one of so many tokens is in the sample; 0: none is.
    likely_of: so many experts have their `Load.likely`; 0: it is None.
  """
  probs_BLX = jax.lax.stop_gradient(routes.probs)
  if counts_BL is not None:
    probs_BLX = jnp.where(counts_BL[..., None], probs_BLX, -jnp.inf)
  last = None if sample_every else 0
  probs_SX = probs_BLX.reshape(-1, bias_X.size)[: last : sample_every or 1]
  return Load(
    tokens=count(routes.choice, bias_X.size, counts_BL),
    sample=probs_SX + bias_X[None],
    likely=_likely(routes, counts_BL, likely_of) if likely_of else None,
  )


def _likely(routes, counts_BL, num_experts):
  # Of the experts alone, or the skip class would be a way out.
  probs_BLE = routes.probs[..., :num_experts]
  probs_BLE /= jnp.sum(probs_BLE, axis=-1, keepdims=True)
  if counts_BL is not None:
    probs_BLE = jnp.where(counts_BL[..., None], probs_BLE, 0)
  return jnp.sum(probs_BLE, axis=(0, 1))


def count(
  choice_BL: jax.Array, num_classes: int, counts_BL: jax.Array | None
) -> jax.Array:
  """[X] float32 tokens that chose each class, those that count."""
  hit = reference.chosen(choice_BL, num_classes)
  if counts_BL is not None:
    hit &= counts_BL[..., None]
  return jnp.sum(hit, axis=(0, 1), dtype=jnp.float32)
