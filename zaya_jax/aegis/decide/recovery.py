# SPDX-License-Identifier: Apache-2.0
"""The end of a generation, and whether the budgets allow the next one."""

from zaya_jax.aegis.decide import breaker, events
from zaya_jax.aegis.decide import state as state_lib
from zaya_jax.config import exit_codes

Action = events.Action
State = state_lib.State

Decision = tuple[State, Action]

IGNORE = Action(kind='ignore')
HOUR_S = breaker.HOUR_S


def warn(event: events.Event, reason: str = '') -> Action:
  """Tells people, and nothing else."""
  return Action(kind='warn', node=event.node, reason=reason or event.detail)


def stop(
  reason: str, *, code: int = exit_codes.STOPPED, node: str | None = None
) -> Action:
  """Ends the run with an exit code that schedulers understand."""
  return Action(kind='stop', exit_code=code, reason=reason, node=node)


def begin(
  state: State,
  event: events.Event,
  *,
  reason: str,
  condemn: tuple[str, ...] = (),
  away: tuple[str, ...] = (),
  kind: events.ActionKind = 'restart',
  free: bool = False,
  outside: bool = False,
  step: int | None = None,
  steps: int = 0,
) -> Decision:
  """Begins the next generation, or stops where a budget is used up.

  Args:
    state: of the generation that ends.
    event: why it ends.
    reason: the same for people.
    condemn: nodes to put into quarantine, as far as the budgets allow.
    away: nodes to replace that are not there; they may return.
    kind: of the action where no node is lost.
    free: whether neither budget counts this end.
    outside: whether the program is not at fault: it may make progress yet.
    step: the checkpoint to restore; None: the newest valid one.
    steps: batches to skip from there.
  """
  condemned: tuple[str, ...] = ()
  drained = (state.draining,) if state.draining else ()
  groups = ((condemn, reason), (drained, state.drain_reason))
  for nodes, why in groups:
    more = tuple(node for node in nodes if node not in condemned)
    state, more = breaker.condemn(state, event, more, why)
    condemned += more
  wanted = (*condemn, *drained)
  capped = tuple(node for node in wanted if node not in condemned)
  lost = (*condemned, *(node for node in away if node not in condemned))
  if wanted:
    reason = f'{reason}; {breaker.count(state, event.time_s)}'
  if capped:
    reason = f'{reason}: the cap keeps {", ".join(capped)}, a person must look'
    state = state.but(alarm=reason)
  # A failure before the first step belongs to the incident before it.
  is_new = not free and (state.running or not _recent(state, event))
  if is_new or capped or (away and not event.final):
    state = state.but(restarts=(*state.restarts, event.time_s))
  if not (lost or free or outside or capped):
    fruitless = 0 if state.gained else state.fruitless + 1
    state = state.but(fruitless=fruitless)
  return _next(state, event, lost, reason, kind=kind, step=step, steps=steps)


def wait(
  state: State, event: events.Event, nodes: tuple[str, ...], reason: str
) -> Decision:
  """Waits for nodes that were lost together: nobody takes their places yet."""
  past = _recent(state, event)
  if state.running or not past:
    past = (*past, event.time_s)
  state = state.but(restarts=past)
  mine = tuple(node for node in state.nodes if node in nodes)
  wait_s = state.policy.outage_wait_s
  reason = f'{reason}; nobody is condemned: {wait_s:.0f} s to return'
  state = set_aside(state, tuple(n for n in nodes if n not in mine)).but(
    running=False,
    waiting=tuple(dict.fromkeys((*state.waiting, *mine))),
    draining=None,  # There is no checkpoint any more to wait for.
    drain_reason='',
  )
  if exhausted := _exhausted(state, event, reason):
    return state, exhausted
  return state, Action(
    kind='wait', delay_s=wait_s, reason=f'{reason}; {_budgets(state, event)}'
  )


def set_aside(state: State, nodes: tuple[str, ...]) -> State:
  """Makes spares absent."""
  return state.but(
    spares=tuple(node for node in state.spares if node not in nodes),
    absent=(*state.absent, *nodes),
  )


def seal_before(state: State, good: int) -> tuple[State, int | None]:
  """Forgets seals after step `good`, but never all; returns the newest left.

  The step is None where no seal is known: the trainer then restores the newest
  valid checkpoint.
  """
  if not state.sealed:
    return state, None
  kept = tuple(s for s in state.sealed if s <= good) or state.sealed[:1]
  return state.but(sealed=kept), kept[-1]


def _next(
  state: State,
  event: events.Event,
  lost: tuple[str, ...],
  reason: str,
  *,
  kind: events.ActionKind,
  step: int | None,
  steps: int,
) -> Decision:
  """The generation after this one, without the lost nodes, or the end."""
  is_stopping = state.draining == ''
  after = state_lib.without(state, lost)
  left = after or state.but(
    nodes=tuple(node for node in state.nodes if node not in lost),
    spares=tuple(node for node in state.spares if node not in lost),
  )
  gone = tuple(node for node in lost if node not in state.quarantined)
  state = left.but(
    generation=state.generation + 1,
    running=False,
    gained=False,
    restarts=_recent(state, event),
    draining=None,
    drain_reason='',
    absent=(*state.absent, *gone),
    waiting=(),
  )
  if is_stopping:
    return state, stop(f'{reason}, while the run was stopping')
  if exhausted := _exhausted(state, event, reason):
    return state, exhausted
  if after is None:
    return state, stop(f'{reason}; no spare takes the place', node=lost[0])
  return state, Action(
    kind='replace_node' if lost else kind,
    node=lost[0] if lost else event.node,
    step=step,
    steps=steps,
    delay_s=_delay_s(state),
    reason=f'{reason}; {_budgets(state, event)}',
  )


def _recent(state: State, event: events.Event) -> tuple[float, ...]:
  """Incidents of the last hour; not those of a clock that was far ahead."""
  return tuple(t for t in state.restarts if abs(event.time_s - t) < HOUR_S)


def _budgets(state: State, event: events.Event) -> str:
  policy = state.policy
  return (
    f'{len(_recent(state, event))} of {policy.restarts_per_hour} incidents '
    f'this hour, {state.fruitless} of {policy.no_progress} without a seal'
  )


def _exhausted(state: State, event: events.Event, reason: str) -> Action | None:
  policy, past = state.policy, _recent(state, event)
  if state.fruitless >= policy.no_progress:
    why = f'{state.fruitless} generations in a row sealed no checkpoint'
    why = f'{why}; the last ended by: {reason}'
    return stop(why, code=exit_codes.NO_PROGRESS)
  if len(past) > policy.restarts_per_hour:
    return stop(f'{len(past)} incidents in an hour; {reason}')
  return None


def _delay_s(state: State) -> float:
  """No wait after a first failure, then 1, 2, 4, ... seconds."""
  failures = max(state.fruitless, len(state.restarts) - 2)
  if failures < 2:
    return 0.0
  return min(state.policy.backoff_s, 2.0 ** (failures - 2))
