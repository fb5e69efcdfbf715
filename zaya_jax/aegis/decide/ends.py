# SPDX-License-Identifier: Apache-2.0
"""Ranks that end or hang: which is the cause, and what follows."""

import dataclasses
import signal

from zaya_jax.aegis.decide import (
  blame,
  breaker,
  events,
  nodes,
  numerics,
  recovery,
)
from zaya_jax.aegis.decide import state as state_lib
from zaya_jax.config import exit_codes

Event = events.Event
State = state_lib.State
Decision = recovery.Decision

# SIGKILL and the kernel's line about it may come in either order.
_MEMORY_S = 10.0


def ended(state: State, event: Event) -> Decision:
  """At least one rank ended before the run did."""
  if _is_awaited(state):
    return state, recovery.IGNORE
  cause = blame.ended(event)
  if cause is None:
    return recovery.begin(state, event, reason=event.detail or 'a rank ended')
  code, reason = cause.exit_code or 0, _how(cause, event)
  last = max(rank.entered for rank in event.progress)
  event = dataclasses.replace(event, node=cause.node, step=event.step or last)
  if code in (exit_codes.USAGE, exit_codes.UNUSABLE):
    return state, recovery.stop(reason, code=code)  # A restart would end so.
  if code == exit_codes.NUMERICS:
    return numerics.roll_back(state, event)
  if code in blame.SYMPTOMS:
    if any(rank.exit_code is None for rank in event.progress):
      return stuck(state, event)
    if code == exit_codes.STOPPED and not event.detail:
      # A rank that has lost a peer would have said so.
      return state, recovery.stop('all ranks were asked to stop')
  if code == -signal.SIGKILL:
    state = state.mark('killed', event, keep_s=_MEMORY_S)
    if _is_marked(state.memory_lines, event):
      state, stop = _count_memory(state, reason)
      if stop:
        return state, stop
      return recovery.begin(state, event, reason=f'out of memory: {reason}')
  if code > 0:  # An exception is a fault of the program, not of the node.
    return recovery.begin(state, event, reason=reason)
  return nodes.strike(state, event, reason)


def stuck(state: State, event: Event) -> Decision:
  """No rank progresses. The node that is the cause twice is replaced."""
  if _is_awaited(state):
    return state, recovery.IGNORE
  suspects = blame.behind(event.progress)
  reason = event.detail or 'no progress'
  if len(suspects) == 1:
    event = dataclasses.replace(event, node=suspects[0])
    reason = f'{reason}; {suspects[0]} holds up the others'
    return nodes.strike(state, event, reason)
  again = tuple(node for node in suspects if node in state.suspects)
  most = state.policy.evict_at_most
  room = breaker.room(state, event.time_s)
  few = 0 < len(again) <= min(most, len(state.spares), room)
  if breaker.is_paused(state, event.time_s):
    again, few = (), False
  names = ', '.join(again or suspects)
  if len(suspects) > most:
    names = f'{len(suspects)} nodes'
  times = ', the second time' if again else ''
  return recovery.begin(
    state.but(suspects=() if few else again or suspects),
    dataclasses.replace(event, node=None),
    condemn=again if few else (),
    reason=f'{reason}; nobody stands out among {names}{times}',
  )


def memory_line(state: State, event: Event) -> Decision:
  """The kernel killed a process for memory; perhaps a rank, just before."""
  if not _is_marked(state.killed, event):
    state = state.mark('memory_lines', event, keep_s=_MEMORY_S)
    return state, recovery.warn(event)
  # Then the death of the rank is no fault of its node.
  strikes = tuple(mark for mark in state.strikes if mark not in state.killed)
  state, stop = _count_memory(state.but(strikes=strikes), event.detail)
  why = f'a rank was killed for memory: {event.detail}'
  return state, stop or recovery.warn(event, why)


def _count_memory(
  state: State, reason: str
) -> tuple[State, events.Action | None]:
  count = state.out_of_memory + 1
  state = state.but(out_of_memory=count, killed=(), memory_lines=())
  if count < state.policy.out_of_memory:
    return state, None
  why = f'out of memory {count} times without a checkpoint between: {reason}'
  return state, recovery.stop(why, code=exit_codes.NO_PROGRESS)


def _is_marked(marks: state_lib.Marks, event: Event) -> bool:
  near = state_lib.recent(marks, event.time_s, _MEMORY_S)
  return any(node == event.node for node, _ in near)


def _is_awaited(state: State) -> bool:
  """Whether ranks end because nodes are lost that `wait` waits for."""
  return bool(state.waiting) and state.draining != ''


def _how(rank: events.Progress, event: Event) -> str:
  code = rank.exit_code or 0
  names = {-number: number.name for number in signal.Signals}
  how = f'with exit code {code}'
  if code < 0:  # Signals of real time have no names.
    how = f'by {names.get(code, f"signal {-code}")}'
  return (
    f'rank {rank.rank} on {rank.node} ended {how} after entering step '
    f'{rank.entered}' + (f': {event.detail}' if event.detail else '')
  )
