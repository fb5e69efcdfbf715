# SPDX-License-Identifier: Apache-2.0
"""What is compiled for decoding: functions of weights, state and tokens."""

import dataclasses

import jax
import jax.numpy as jnp

from zaya_jax import config as config_lib
from zaya_jax.inference.decoding import network, sampling


@dataclasses.dataclass(frozen=True, kw_only=True)
class About:
  """What the programs of a decoder depend on, besides shapes."""

  config: config_lib.ModelConfig
  vocab_size: int
  steps: int
  mesh: jax.sharding.Mesh | None

  @property
  def axis(self) -> str | None:
    """The mesh axis over which the rows of the cache are divided."""
    return 'context' if self.mesh else None


def chunk(about, weights, tokens_BL, mask_BL, cache):
  """The features of the last token of each row, and the cache after them."""
  x_BLD, cache = network.forward(
    about.config, weights, tokens_BL, cache, mask_BL, about.axis
  )
  return x_BLD[:, -1:], cache


def next_token(about, weights, x_B1D, key, sample):
  """The next token of each row, by the second half of `key`."""
  logits_BV = network.logits(about.config, weights, x_B1D)[:, 0]
  if about.vocab_size < logits_BV.shape[1]:
    real = jnp.arange(logits_BV.shape[1]) < about.vocab_size
    logits_BV = jnp.where(real[None], logits_BV, -jnp.inf)
  return sampling.choose(logits_BV, jax.random.split(key)[1], **sample)


def steps(about, weights, state, sample):
  """Tokens of the next steps, [N, B], and the state after them."""

  def step(state, _):
    key, _ = jax.random.split(state['key'])
    x_B1D, cache = network.forward(
      about.config,
      weights,
      state['tokens'][:, None],
      state['cache'],
      axis=about.axis,
    )
    next_B = next_token(about, weights, x_B1D, key, sample)
    return {'tokens': next_B, 'cache': cache, 'key': key}, next_B

  state, next_NB = jax.lax.scan(step, state, length=about.steps)
  return next_NB, state


NAMES = {chunk: 'the prompt', steps: 'the step'}
