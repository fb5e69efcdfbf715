# SPDX-License-Identifier: Apache-2.0
"""What to do about an event: a pure function, without clock or file."""

import dataclasses

from zaya_jax.aegis.decide import (
  ends,
  events,
  nodes,
  numerics,
  orders,
  recovery,
)
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
  before = state_lib.expire(state, event.time_s)
  state, action = _handle(before, event)
  new = tuple(
    held for held in state.quarantine if held not in before.quarantine
  )
  if new:
    action = dataclasses.replace(
      action,
      condemned=tuple(held.node for held in new),
      run=tuple(
        orders.line(command, node=held.node, reason=held.reason)
        for held in new
        for command in state.policy.orders
      ),
    )
  if action.kind == 'wait' or action.exit_code:
    state = state.but(alarm=action.reason)
  if action.kind == 'stop':
    state = state.but(running=False)
  return state, action


def _handle(state: State, event: Event) -> Decision:
  if event.source == 'trainer':
    if event.action == 'ignore':
      return state, recovery.IGNORE
    return state, recovery.warn(event)
  if event.by is not None:
    if event.kind in _NOT_OF_AGENTS or event.source == 'rank':
      why = f'the agent of {event.by} has no say in {event.kind}'
      return state, recovery.warn(
        dataclasses.replace(event, node=event.by), why
      )
    if event.node is not None:
      event = dataclasses.replace(event, node=event.by)
  handle = _KINDS.get(event.kind) or _RULED[event.action or 'warn']
  return handle(state, event)


def _sealed(state: State, event: Event) -> Decision:
  before, step = max(state.sealed, default=-1), event.step or 0
  there = event.seals or (*state.sealed, step)
  state = state.but(sealed=there[-_SEALS:])
  if step > before:  # Else old ones were removed, and none came.
    state = state.but(gained=True, fruitless=0, failed_saves=0, out_of_memory=0)
    if state.running:  # The storage works again.
      state = state.but(alarm='')
  return state, recovery.IGNORE


def _save_failed(state: State, event: Event) -> Decision:
  count = state.failed_saves + 1
  state = state.but(failed_saves=count)
  budget = state.policy.failed_saves
  if count < budget:
    why = f'{event.detail}; {count} of {budget} failed saves without a seal'
    return state, recovery.warn(event, why)
  why = f'{count} saves in a row failed; the last: {event.detail}'
  return state, recovery.stop(why, code=exit_codes.UNUSABLE)


def _done(state: State, _: Event) -> Decision:
  return state, recovery.stop('the run is complete', code=exit_codes.DONE)


def _paused(state: State, event: Event) -> Decision:
  why = (
    f'the supervisor itself did not run; nobody is condemned: {event.detail}'
  )
  return state.but(paused_s=event.time_s), recovery.warn(event, why)


def _storage(state: State, event: Event) -> Decision:
  return state.but(alarm=event.detail or event.kind), recovery.warn(event)


def _running(state: State, _: Event) -> Decision:
  state = state.but(running=True, proven=True, waiting=(), alarm='')
  return state, recovery.IGNORE


def _warn(state: State, event: Event) -> Decision:
  return state, recovery.warn(event)


_KINDS = {
  'exit': ends.ended,
  'hang': ends.stuck,
  'out_of_memory': ends.memory_line,
  'agent_lost': nodes.gone,
  'not_started': nodes.gone,
  'unhealthy': nodes.gone,
  'returned': nodes.returned,
  'paused': _paused,
  'storage': _storage,
  'slow_rank': nodes.slow,
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

# A line of a kernel may be about memory; all else is seen by others.
_NOT_OF_AGENTS = set(events.KINDS) - {'out_of_memory'}

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
