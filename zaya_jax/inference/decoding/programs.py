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
    key = now = state['key']
    if sample:
      key, now = jax.random.split(key)
    next_B = sampling.choose(logits_BV, now, **sample)
    return {**state, 'tokens': next_B, 'cache': cache, 'key': key}, next_B

  state, next_NB = jax.lax.scan(step, state, length=about.steps)
  return next_NB, state


def read(about, weights, part, state, scored=False):
  """Tokens of R prompts go into as many slots, after those that are there.

  Args:
    about: of the decoder.
    weights: of `network.prepare`.
    part: 'tokens' [R, L] int32; 'next' [R, L] int32, what follows each; by row
      [R] 'count', how many are tokens; 'slot', none twice, one that there is
      not for a row without a prompt; 'fresh', whether the slot begins anew.
    state: of `slots.Slots`.
    scored: whether to say how likely the tokens of 'next' are; R is 1.

  Returns:
    What `sampling.scores` gives, or nothing; and the state.
  """
  tokens_RL, slot_R, fresh_R = part['tokens'], part['slot'], part['fresh']
  cache = state['cache']
  size = cache.valid.shape[1]
  empty = network.init_cache(about.config, weights, len(tokens_RL), size)
  rows = cache_lib.rows(cache, slot_R)
  fresh_1R1 = fresh_R[None, :, None]
  rows = dataclasses.replace(
    rows,
    conv=jnp.where(fresh_1R1[..., None], empty.conv, rows.conv),
    delayed=jnp.where(fresh_1R1, empty.delayed, rows.delayed),
    length=jnp.where(fresh_R, 0, rows.length),
    valid=rows.valid & ~fresh_R[:, None],
    position=jnp.where(fresh_R, 0, rows.position),
  )
  mask_RL = jnp.arange(tokens_RL.shape[1])[None] < part['count'][:, None]
  x_RLD, rows = network.forward(about.config, weights, tokens_RL, rows, mask_RL)
  found = {}
  if scored:
    logits_LV = _logits(about, weights, x_RLD)[0]
    found = sampling.scores(logits_LV, part['next'][0], about.top)
  return found, {**state, 'cache': cache_lib.put_rows(cache, rows, slot_R)}


def settle(about, weights, values, state):
  """Says what slots do next.

  Args:
    about: of the decoder.
    weights: of `network.prepare`.
    values: [S] of each slot by name, 'changed' where they count, the seeds of
      samples, and 'seen' [S, size] if some may not repeat.
    state: of `slots.Slots`.
  """
  del about, weights
  values = dict(values)
  changed_S = values.pop('changed')
  values['keys'] = jax.vmap(jax.random.key)(values.pop('seed'))
  seen_SX = values.pop('seen', state['seen'])
  said_S1 = (changed_S & (values['no_repeat'] > 0))[:, None]
  chosen = {k: jnp.where(changed_S, v, state[k]) for k, v in values.items()}
  chosen['seen'] = jnp.where(said_S1, seen_SX, state['seen'])
  return {}, {**state, **chosen}


def keep(about, weights, where, state, pool):
  """A piece that a slot has read goes into the pool: see `cache.keep`."""
  del about, weights
  return {}, cache_lib.keep(pool, state['cache'], **where)


def restore(about, weights, where, pool, state):
  """A piece of the pool goes into a slot: see `cache.restore`."""
  del about, weights
  cache = cache_lib.restore(state['cache'], pool, **where)
  return {}, {**state, 'cache': cache}


def slot_steps(about, weights, slots_R, state):
  """The next tokens of the slots that have some left.

  Args:
    about: of the decoder.
    weights: of `network.prepare`.
    slots_R: int32, the slots that are computed, those that have tokens left
      among them and none twice; as many as there are: all, in their order.
    state: of `slots.Slots`.

  Returns:
    'tokens' [N, S] int32, -1 where there is none; for slots that are 'scored',
    what `sampling.scores` gives, [N, S, ...]; and the state.
  """
  count = len(state['left'])
  if len(slots_R) == count:
    step = lambda state, _: _slot_step(about, weights, state)
    state, found = jax.lax.scan(step, state, length=about.steps)
    return found, state
  own = {k: v for k, v in state.items() if k != 'stop_ids'}
  cache = own.pop('cache')
  few = {
    'cache': cache_lib.rows(cache, slots_R),
    'stop_ids': state['stop_ids'],
    **{k: v[slots_R] for k, v in own.items()},
  }
  found, few = slot_steps(about, weights, jnp.arange(len(slots_R)), few)
  state = {
    'cache': cache_lib.put_rows(cache, few['cache'], slots_R),
    'stop_ids': state['stop_ids'],
    **{k: v.at[slots_R].set(few[k]) for k, v in own.items()},
  }

  def spread(name, values):
    shape = (values.shape[0], count, *values.shape[2:])
    empty = jnp.full(shape, -1 if name == 'tokens' else 0, values.dtype)
    return empty.at[:, slots_R].set(values)

  return {k: spread(k, v) for k, v in found.items()}, state


def _slot_step(about, weights, state):
  """The state after one more token of each slot, and what is told of it."""
  active_S, at_S = state['left'] > 0, state['cache'].length
  x_S1D, cache = network.forward(
    about.config,
    weights,
    state['tokens'][:, None],
    state['cache'],
    active_S[:, None],
  )
  logits_SV = _logits(about, weights, x_S1D)[:, 0]
  logits_SV, seen = _forbid(state, logits_SV, active_S, at_S)
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
    'seen': seen,
    'tokens': jnp.where(goes_on_S, next_S, state['tokens']),
    'keys': jnp.where(active_S, keys_2S[0], state['keys']),
    'left': jnp.where(goes_on_S, state['left'] - 1, 0),
  }
  return state, found


def _forbid(state, logits_SV, active_S, at_S):
  """Logits without repeats where slots ask for it, and the tokens so far."""

  def forbid(logits_SV, seen_SX):
    slots_S = jnp.arange(len(seen_SX))
    # Behind the end, where it is dropped, for slots that wait.
    column_S = jnp.where(active_S, at_S, seen_SX.shape[1])
    seen_SX = seen_SX.at[slots_S, column_S].set(state['tokens'], mode='drop')
    count_S = jnp.where(active_S, state['no_repeat'], 0)
    return sampling.forbid_repeats(logits_SV, seen_SX, at_S, count_S), seen_SX

  wanted = jnp.any((state['no_repeat'] > 0) & active_S)
  keep_as_is = lambda logits_SV, seen_SX: (logits_SV, seen_SX)
  return jax.lax.cond(wanted, forbid, keep_as_is, logits_SV, state['seen'])


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
  keep: 'what keeps a prompt',
  restore: 'what restores a prompt',
}
