# SPDX-License-Identifier: Apache-2.0
"""What is compiled for decoding: functions of weights, state and tokens."""

import dataclasses

import jax
import jax.numpy as jnp

from zaya_jax import config as config_lib
from zaya_jax.inference.decoding import cache as cache_lib
from zaya_jax.inference.decoding import network, sampling


@dataclasses.dataclass(frozen=True, kw_only=True)
class About:
  """What the programs of a decoder depend on, besides shapes."""

  config: config_lib.ModelConfig
  vocab_size: int
  steps: int
  mesh: jax.sharding.Mesh | None

  @property
  def top(self) -> int:
    """How many of the likeliest tokens are told."""
    return min(20, self.vocab_size)

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
    logits_BV = _logits(about, weights, x_B1D)[:, 0]
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


def read(about, weights, part, state, scored=False):
  """Tokens of a prompt go into one slot, after those that are there.

  Args:
    about: of the decoder.
    weights: of `network.prepare`.
    part: 'tokens' [1, L] int32; 'next' [L] int32, what follows each; 'count'
      of L that are tokens; 'slot'; 'fresh', whether the slot begins anew.
    state: of `slots.Slots`.
    scored: whether to say how likely the tokens of 'next' are.

  Returns:
    What `sampling.scores` gives, or nothing; and the state.
  """
  slot, fresh = part['slot'], part['fresh']
  cache = state['cache']
  empty = network.init_cache(about.config, weights, 1, cache.valid.shape[1])
  row = cache_lib.row(cache, slot)
  row = dataclasses.replace(
    row,
    conv=jnp.where(fresh, empty.conv, row.conv),
    delayed=jnp.where(fresh, empty.delayed, row.delayed),
    length=jnp.where(fresh, 0, row.length),
    valid=row.valid & ~fresh,
    position=jnp.where(fresh, 0, row.position),
  )
  tokens_1L = part['tokens']
  mask_1L = (jnp.arange(tokens_1L.shape[1]) < part['count'])[None]
  x_1LD, row = network.forward(about.config, weights, tokens_1L, row, mask_1L)
  found = {}
  if scored:
    logits_LV = _logits(about, weights, x_1LD)[0]
    found = sampling.scores(logits_LV, part['next'], about.top)
  return found, {**state, 'cache': cache_lib.put_row(cache, row, slot)}


def settle(about, weights, values, state):
  """Says what a slot does next: values by name, and 'slot'."""
  del about, weights
  values = dict(values)
  slot = values.pop('slot')
  changed = {k: state[k].at[slot].set(v) for k, v in values.items()}
  return {}, {**state, **changed}


def slot_steps(about, weights, state):
  """The next tokens of every slot that has some left.

  Returns:
    'tokens' [N, S] int32, -1 where there is none; for slots that are 'scored',
    what `sampling.scores` gives, [N, S, ...]; and the state.
  """

  def step(state, _):
    active_S = state['left'] > 0
    x_S1D, cache = network.forward(
      about.config,
      weights,
      state['tokens'][:, None],
      state['cache'],
      active_S[:, None],
    )
    logits_SV = _logits(about, weights, x_S1D)[:, 0]
    keys_2S = jax.vmap(jax.random.split, out_axes=1)(state['keys'])
    next_S = sampling.choose_apart(
      logits_SV, keys_2S[1], state['temperature'], state['top_p']
    )
    score = lambda logits_SV: sampling.scores(logits_SV, next_S, about.top)
    nothing = lambda logits_SV: jax.tree.map(
      lambda a: jnp.zeros(a.shape, a.dtype), jax.eval_shape(score, logits_SV)
    )
    wanted = jnp.any(state['scored'] & active_S)
    found = jax.lax.cond(wanted, score, nothing, logits_SV)
    goes_on_S = active_S & ~jnp.isin(next_S, state['stop_ids'])
    found['tokens'] = jnp.where(goes_on_S, next_S, -1)
    state = {
      **state,
      'cache': cache,
      'tokens': jnp.where(goes_on_S, next_S, state['tokens']),
      'keys': jnp.where(active_S, keys_2S[0], state['keys']),
      'left': jnp.where(goes_on_S, state['left'] - 1, 0),
    }
    return state, found

  state, found = jax.lax.scan(step, state, length=about.steps)
  return found, state


def _logits(about, weights, x_BLD):
  """[B, L, V] float32, -inf for what only pads the embedding."""
  logits_BLV = network.logits(about.config, weights, x_BLD)
  if about.vocab_size < logits_BLV.shape[-1]:
    real_V = jnp.arange(logits_BLV.shape[-1]) < about.vocab_size
    logits_BLV = jnp.where(real_V[None, None], logits_BLV, -jnp.inf)
  return logits_BLV


NAMES = {
  chunk: 'the prompt',
  steps: 'the step',
  read: 'the prompt',
  settle: 'the change of a slot',
  slot_steps: 'the step',
}
