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
  """The cache after some tokens of each row."""
  _, cache = network.forward(
    about.config, weights, tokens_BL, cache, mask_BL, about.axis
  )
  return cache


def steps(about, weights, state, sample, no_repeat=0):
  """Tokens of the next steps, [N, B], and the state after them."""

  def step(state, _):
    tokens_B1, last = state['tokens'][:, None], state['cache'].length
    x_B1D, cache = network.forward(
      about.config, weights, tokens_B1, state['cache'], axis=about.axis
    )
    logits_BV = network.logits(about.config, weights, x_B1D)[:, 0]
    if about.vocab_size < logits_BV.shape[1]:
      real = jnp.arange(logits_BV.shape[1]) < about.vocab_size
      logits_BV = jnp.where(real[None], logits_BV, -jnp.inf)
    if no_repeat:
      seen_BS = state['seen']
      seen_BS = jax.lax.dynamic_update_slice(seen_BS, tokens_B1, (0, last))
      state = {**state, 'seen': seen_BS}
      logits_BV = sampling.forbid_repeats(logits_BV, seen_BS, last, no_repeat)
    key, now = jax.random.split(state['key'])
    next_B = sampling.choose(logits_BV, now, **sample)
    return {**state, 'tokens': next_B, 'cache': cache, 'key': key}, next_B

  state, next_NB = jax.lax.scan(step, state, length=about.steps)
  return next_NB, state


NAMES = {chunk: 'the prompt', steps: 'the step'}
