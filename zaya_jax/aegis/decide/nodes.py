# SPDX-License-Identifier: Apache-2.0
"""Faults of nodes: they are counted, drained, replaced."""

import dataclasses

from zaya_jax.aegis.decide import events, recovery
from zaya_jax.aegis.decide import state as state_lib
from zaya_jax.config import exit_codes

Event = events.Event
State = state_lib.State
Decision = recovery.Decision


def replace(state: State, event: Event, reason: str = '') -> Decision:
  """Replaces the node of `event`; seals after `good_step` are not trusted."""
  reason = reason or f'{event.kind}: {event.detail}'
  if event.node in state.nodes:
    step = None
    if event.good_step is not None:
      state, step = recovery.seal_before(state, event.good_step)
    return recovery.begin(
      state, event, lost=(event.node,), step=step, reason=reason
    )
  if event.node not in state.spares:  # It is in quarantine already.
    return state, recovery.IGNORE
  state = state.but(
    spares=tuple(node for node in state.spares if node != event.node),
    quarantine=(*state.quarantine, state_lib.Held(node=event.node)),
  )
  return state, recovery.warn(event, f'{reason}; it was a spare')


def strike(state: State, event: Event, reason: str) -> Decision:
  """Ends the generation; replaces a node with too many faults."""
  state, count = count_strike(state, event)
  lost, node = (), event.node
  if node and count >= state.policy.strikes and can_lose(state, node):
    lost, reason = (node,), f'{reason}; fault {count} of {node}'
  return recovery.begin(state, event, lost=lost, reason=reason)


def count_strike(state: State, event: Event) -> tuple[State, int]:
  """Counts a fault against a node; also returns how many it has."""
  state = state.mark('strikes', event, keep_s=state.policy.strike_window_s)
  return state, sum(node == event.node for node, _ in state.strikes)


def can_lose(state: State, node: str) -> bool:
  """Whether the run goes on, at its size or shrunken, without `node`."""
  return state_lib.without(state, (node,)) is not None


def agent_lost(state: State, event: Event) -> Decision:
  """A node is gone, with its ranks and its disks."""
  return replace(state, event, f'the agent of {event.node} is gone')


def unhealthy(state: State, event: Event) -> Decision:
  """A node failed its health check: the next spare takes its place."""
  return replace(state, event, f'{event.node} is unhealthy: {event.detail}')


def ready(state: State, event: Event) -> Decision:
  """A node is healthy, or healthy again: it becomes a spare."""
  if event.node in (*state.nodes, *state.spares):
    return state, recovery.IGNORE
  state = state.but(
    spares=(*state.spares, event.node),
    quarantine=tuple(x for x in state.quarantine if x.node != event.node),
    strikes=tuple(mark for mark in state.strikes if mark[0] != event.node),
  )
  return state, recovery.IGNORE


def slow(state: State, event: Event) -> Decision:
  """A rank is slow: some windows are worth a warning, many a drain."""
  state = state.mark('slow', event, keep_s=recovery.HOUR_S)
  count = sum(node == event.node for node, _ in state.slow)
  warned, enough = state.policy.slow_windows
  reason = f'slow in {count} windows: {event.detail}'
  if count == warned:
    return state, recovery.warn(event, reason)
  if count < enough:
    return state, recovery.IGNORE
  state = state.but(slow=tuple(m for m in state.slow if m[0] != event.node))
  return drain(state, dataclasses.replace(event, detail=reason))


def drain(state: State, event: Event) -> Decision:
  """Replaces a node after one more checkpoint, if a spare can follow it."""
  if event.node is None:
    return stop_requested(state, event)
  if event.node not in state.nodes:
    return replace(state, event)
  if state.draining is not None:
    return state, recovery.IGNORE
  if not can_lose(state, event.node):
    why = f'{event.detail}; no spare takes the place of {event.node}'
    return state, recovery.warn(event, why)
  return state.but(draining=event.node), events.Action(
    kind='checkpoint_and_drain', node=event.node, reason=event.detail
  )


def stop_requested(state: State, event: Event) -> Decision:
  """The whole run saves and ends."""
  return state.but(draining=''), events.Action(
    kind='checkpoint_and_drain',
    exit_code=exit_codes.STOPPED,
    reason=event.detail or 'asked to stop',
  )


def drained(state: State, event: Event) -> Decision:
  """All ranks have saved and ended, as they were asked to."""
  if not state.draining:
    return state, recovery.stop('all ranks saved and ended')
  reason = f'{state.draining} was drained at a checkpoint'
  return recovery.begin(state, event, free=True, reason=reason)
