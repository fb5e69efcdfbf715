# SPDX-License-Identifier: Apache-2.0
"""Faults of nodes: they are counted, drained, replaced."""

import dataclasses

from zaya_jax.aegis.decide import breaker, events, recovery
from zaya_jax.aegis.decide import state as state_lib
from zaya_jax.config import exit_codes

Event = events.Event
State = state_lib.State
Decision = recovery.Decision

_NAMES = 8  # So many are named.
_GONE = {
  'agent_lost': 'the agent of {} is gone',
  'not_started': 'no agent started on {}',
  'unhealthy': '{} failed the health check',
}


def gone(state: State, event: Event) -> Decision:
  """Nodes that are lost, did not start or are unhealthy."""
  known = tuple(
    node
    for node in dict.fromkeys(event.nodes or (event.node,))
    if node in (*state.nodes, *state.spares)
  )
  mine = tuple(node for node in known if node in state.nodes)
  names = ', '.join(known)
  if len(known) > _NAMES:
    names = f'{len(known)} nodes'
  reason = f'{_GONE[event.kind].format(names)}'
  if event.detail and event.kind != 'agent_lost':
    reason = f'{reason}: {event.detail}'
  if mine and state.draining == '':
    return recovery.begin(state, event, reason=reason)
  if why := _is_none_left(state, event, known, mine):
    return state, recovery.stop(f'{why}: {event.detail}', code=exit_codes.USAGE)
  together = breaker.many(state, len(known)) or bool(state.waiting)
  if event.kind == 'agent_lost':
    together = together or breaker.is_paused(state, event.time_s)
  # Those that never ran keep nobody waiting whom spares can replace.
  few = state_lib.without(state, known) is None
  if mine and together and not event.final:
    if few or event.kind == 'agent_lost':
      cause = 'the supervisor itself had not run'
      if breaker.many(state, len(known)):
        cause = 'so many at once are a switch, the storage or the power'
      elif state.waiting:
        cause = 'it belongs to the outage'
      return recovery.wait(state, event, known, f'{reason}; {cause}')
  guilty = event.kind != 'not_started' and not event.final and not together
  if event.kind == 'agent_lost' and few:
    guilty = False  # Whoever starts the run anew needs this node, if it starts.
  room = breaker.room(state, event.time_s) if guilty else 0
  if guilty and room < len(known):
    count = breaker.count(state, event.time_s)
    reason = f'{reason}; {count}, so {", ".join(known[room:])} is only absent'
  if mine:
    return recovery.begin(
      state,
      event,
      reason=reason,
      condemn=known[:room],
      away=known[room:],
      outside=True,
    )
  if not known:  # They are in quarantine already, or absent.
    return state, recovery.IGNORE
  return _without_spares(state, event, known[:room], known[room:], reason)


def returned(state: State, event: Event) -> Decision:
  """A node has started and passed its check: it goes on, or is a spare."""
  node = event.node
  if node in state.waiting:
    waiting = tuple(other for other in state.waiting if other != node)
    state = state.but(waiting=waiting)
    if waiting:
      return state, recovery.IGNORE
    reason = 'all nodes have returned'
    return recovery.begin(state, event, reason=reason, outside=True)
  if node in state.quarantined:
    why = f'{node} is in quarantine: {_held(state, node).reason}'
    return state, recovery.warn(event, why)
  if node not in state.absent:
    return state, recovery.IGNORE
  state = state.but(
    spares=(*state.spares, node),
    absent=tuple(other for other in state.absent if other != node),
    strikes=tuple(mark for mark in state.strikes if mark[0] != node),
  )
  return state, recovery.IGNORE


def replace(state: State, event: Event, reason: str = '') -> Decision:
  """Replaces the node of `event`; seals after `good_step` are not trusted."""
  reason = reason or f'{event.kind}: {event.detail}'
  if event.node in state.nodes:
    step = None
    if event.good_step is not None:
      state, step = recovery.seal_before(state, event.good_step)
    return recovery.begin(
      state, event, condemn=(event.node,), step=step, reason=reason
    )
  if event.node not in state.spares:  # It is not in use.
    return state, recovery.IGNORE
  room = breaker.room(state, event.time_s)
  nodes = (event.node,)
  return _without_spares(state, event, nodes[:room], nodes[room:], reason)


def strike(state: State, event: Event, reason: str) -> Decision:
  """Ends the generation; replaces a node with too many faults."""
  if breaker.is_paused(state, event.time_s):
    reason = f'{reason}; the supervisor had not run, so no fault is counted'
    return recovery.begin(state, event, reason=reason, outside=True)
  state, count = count_strike(state, event)
  condemn, node = (), event.node
  reason = (
    f'{reason}; fault {count} of {node}, {state.policy.strikes} replace it'
  )
  if node and count >= state.policy.strikes and can_lose(state, node):
    condemn = (node,)
  return recovery.begin(state, event, condemn=condemn, reason=reason)


def count_strike(state: State, event: Event) -> tuple[State, int]:
  """Counts a fault against a node; also returns how many it has."""
  state = state.mark('strikes', event, keep_s=state.policy.strike_window_s)
  return state, sum(node == event.node for node, _ in state.strikes)


def can_lose(state: State, node: str) -> bool:
  """Whether the run goes on, at its size or shrunken, without `node`."""
  return state_lib.without(state, (node,)) is not None


def slow(state: State, event: Event) -> Decision:
  """A rank is slow: some windows are worth a warning, many a drain."""
  state = state.mark('slow', event, keep_s=recovery.HOUR_S)
  count = sum(node == event.node for node, _ in state.slow)
  warned, enough = state.policy.slow_windows
  reason = f'slow in {count} windows, {enough} replace it: {event.detail}'
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
  if state.waiting or not breaker.room(state, event.time_s):
    count = breaker.count(state, event.time_s)
    why = f'{event.detail}; {count}: the cap keeps {event.node}'
    return state, recovery.warn(event, f'{why}, a person must look')
  reason = f'{event.kind}: {event.detail}'
  state = state.but(draining=event.node, drain_reason=reason)
  return state, events.Action(
    kind='checkpoint_and_drain',
    node=event.node,
    reason=f'{reason}; {breaker.count(state, event.time_s)}',
  )


def stop_requested(state: State, event: Event) -> Decision:
  """The whole run saves and ends."""
  if state.waiting:
    return state, recovery.stop('asked to stop while nodes were awaited')
  return state.but(draining=''), events.Action(
    kind='checkpoint_and_drain',
    exit_code=exit_codes.STOPPED,
    reason=event.detail or 'asked to stop',
  )


def drained(state: State, event: Event) -> Decision:
  """All ranks have saved and ended, as they were asked to."""
  if not state.draining:
    return state, recovery.stop('all ranks saved and ended')
  reason = f'{state.draining} was drained: {state.drain_reason}'
  return recovery.begin(state, event, free=True, reason=reason)


def _is_none_left(
  state: State, event: Event, known: tuple[str, ...], mine: tuple[str, ...]
) -> str:
  """What is wrong instead, where a command failed on all nodes; else ''."""
  if state.proven or set(mine) < set(state.nodes):
    return ''
  if len(known) == 1 and state.spares:  # The spare will show what is wrong.
    return ''
  return {
    'not_started': 'No agent started; correct --aegis.agent, which said',
    'unhealthy': 'No node passed; correct --aegis.health, which said',
  }.get(event.kind, '')


def _without_spares(
  state: State,
  event: Event,
  condemn: tuple[str, ...],
  away: tuple[str, ...],
  reason: str,
) -> Decision:
  """Takes spares out of use; the generation goes on."""
  state, _ = breaker.condemn(state, event, condemn, reason)
  state = recovery.set_aside(state, away).but(
    spares=tuple(n for n in state.spares if n not in (*condemn, *away))
  )
  count = breaker.count(state, event.time_s)
  return state, recovery.warn(event, f'{reason}; it was a spare; {count}')


def _held(state: State, node: str) -> state_lib.Held:
  return next(held for held in state.quarantine if held.node == node)
