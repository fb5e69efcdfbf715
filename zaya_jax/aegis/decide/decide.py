# SPDX-License-Identifier: Apache-2.0
"""What to do about an event: a pure function, without clock or file."""

from zaya_jax.aegis.decide import ends, events, nodes, numerics, recovery
from zaya_jax.aegis.decide import state as state_lib
from zaya_jax.config import exit_codes

Event = events.Event
State = state_lib.State
Decision = recovery.Decision

_SEALS = 16  # Newest sealed steps that are remembered.


def decide(state: State, event: Event) -> Decision:
  """Decides what to do about an event.

  Returns:
    The next state, and the action. After `replace_node`, `restart` and
    `rollback` its `generation` and `nodes` are those of the next generation.
  """
  if event.source == 'trainer' and event.action in events.NODE_ACTIONS:
    why = f'what a trainer prints never acts on a node: {event.detail}'
    return state, recovery.warn(event, why)
  handle = _KINDS.get(event.kind) or _RULED[event.action or 'warn']
  return handle(state, event)


def _sealed(state: State, event: Event) -> Decision:
  before, step = max(state.sealed, default=-1), event.step or 0
  there = event.seals or (*state.sealed, step)
  state = state.but(sealed=there[-_SEALS:])
  if step > before:  # Else old ones were removed, and none came.
    state = state.but(gained=True, fruitless=0, failed_saves=0, out_of_memory=0)
  return state, recovery.IGNORE


def _save_failed(state: State, event: Event) -> Decision:
  count = state.failed_saves + 1
  state = state.but(failed_saves=count)
  if count < state.policy.failed_saves:
    return state, recovery.warn(event)
  why = f'{count} saves in a row failed; the last: {event.detail}'
  return state, recovery.stop(why, code=exit_codes.UNUSABLE)


def _done(state: State, _: Event) -> Decision:
  return state, recovery.stop('the run is complete', code=exit_codes.DONE)


def _warn(state: State, event: Event) -> Decision:
  return state, recovery.warn(event)


_KINDS = {
  'exit': ends.ended,
  'hang': ends.stuck,
  'out_of_memory': ends.memory_line,
  'agent_lost': nodes.agent_lost,
  'not_started': nodes.agent_lost,
  'unhealthy': nodes.unhealthy,
  'returned': nodes.ready,
  'paused': _warn,
  'storage': _warn,
  'slow_rank': nodes.slow,
  'stop_requested': nodes.stop_requested,
  'drained': nodes.drained,
  'not_finite': numerics.roll_back,
  'refused_step': _warn,
  'loss_spike': numerics.spike,
  'wrong_result': numerics.wrong_result,
  'corrupt_replica': numerics.corrupt,
  'running': lambda state, _: (state.but(running=True), recovery.IGNORE),
  'sealed': _sealed,
  'save_failed': _save_failed,
  'done': _done,
}

# Other kinds are names of rules, which say what they want.
_RULED = {
  'ignore': lambda state, _: (state, recovery.IGNORE),
  'warn': _warn,
  'checkpoint_and_drain': nodes.drain,
  'replace_node': nodes.replace,
  'wait': _warn,
  'restart': lambda state, e: recovery.begin(state, e, reason=e.detail),
  'rollback': numerics.roll_back,
  'stop': lambda state, event: (state, recovery.stop(event.detail)),
}
