# SPDX-License-Identifier: Apache-2.0
"""What to do about an event: a pure function, without clock or file."""

import dataclasses

from zaya_jax.aegis.decide import ends, events, nodes, numerics, recovery
from zaya_jax.aegis.decide import state as state_lib
from zaya_jax.config import exit_codes

Event = events.Event
State = state_lib.State
Decision = recovery.Decision

_SEALS = 16  # Steps of seals that are remembered.


def decide(state: State, event: Event) -> Decision:
  """Decides what to do.

  Args:
    state: what is remembered.
    event: what was seen.

  Returns:
    The state to remember, and what to do. After `replace_node`, `restart` and
    `rollback` its `generation` and `nodes` are those of the next generation.
  """
  if event.source == 'trainer' and event.action in events.NODE_ACTIONS:
    why = f'what a trainer prints never acts on a node: {event.detail}'
    return state, recovery.warn(event, why)
  handle = _KINDS.get(event.kind) or _RULED[event.action or 'warn']
  return handle(state, event)


def _running(state: State, event: Event) -> Decision:
  del event
  return dataclasses.replace(state, running=True), recovery.IGNORE


def _sealed(state: State, event: Event) -> Decision:
  before = max(state.sealed, default=-1)
  there = event.seals or (*state.sealed, event.step)
  state = dataclasses.replace(state, sealed=there[-_SEALS:])
  if event.step <= before:  # Only old ones have gone.
    return state, recovery.IGNORE
  state = dataclasses.replace(
    state, gained=True, fruitless=0, failed_saves=0, out_of_memory=0
  )
  return state, recovery.IGNORE


def _save_failed(state: State, event: Event) -> Decision:
  count = state.failed_saves + 1
  state = dataclasses.replace(state, failed_saves=count)
  if count < state.policy.failed_saves:
    return state, recovery.warn(event)
  return state, recovery.stop(
    f'{count} saves in a row failed; the last: {event.detail}',
    code=exit_codes.UNUSABLE,
  )


def _done(state: State, event: Event) -> Decision:
  del event
  return state, recovery.stop('the run is complete', code=exit_codes.DONE)


def _ignore(state: State, event: Event) -> Decision:
  del event
  return state, recovery.IGNORE


def _warn(state: State, event: Event) -> Decision:
  return state, recovery.warn(event)


def _restart(state: State, event: Event) -> Decision:
  return recovery.begin(state, event, reason=event.detail)


def _stop(state: State, event: Event) -> Decision:
  return state, recovery.stop(event.detail)


_KINDS = {
  'exit': ends.ended,
  'hang': ends.stuck,
  'out_of_memory': ends.memory_line,
  'agent_lost': nodes.agent_lost,
  'slow_rank': nodes.slow,
  'unhealthy': nodes.unhealthy,
  'node_ready': nodes.ready,
  'stop_requested': nodes.stop_requested,
  'drained': nodes.drained,
  'not_finite': numerics.roll_back,
  'refused_step': _warn,
  'loss_spike': numerics.spike,
  'wrong_result': numerics.wrong_result,
  'corrupt_replica': numerics.corrupt,
  'running': _running,
  'sealed': _sealed,
  'save_failed': _save_failed,
  'done': _done,
}

_RULED = {
  'ignore': _ignore,
  'warn': _warn,
  'checkpoint_and_drain': nodes.drain,
  'replace_node': nodes.replace,
  'restart': _restart,
  'rollback': numerics.roll_back,
  'stop': _stop,
}
