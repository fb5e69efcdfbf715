# SPDX-License-Identifier: Apache-2.0
"""The end of a generation, and whether the budgets allow the next one."""

from zaya_jax.aegis.decide import events
from zaya_jax.aegis.decide import state as state_lib
from zaya_jax.config import exit_codes

Action = events.Action
State = state_lib.State

Decision = tuple[State, Action]

IGNORE = Action(kind='ignore')
HOUR_S = 3600.0


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
  lost: tuple[str, ...] = (),
  kind: events.ActionKind = 'restart',
  free: bool = False,
  step: int | None = None,
  steps: int = 0,
) -> Decision:
  """Begins the next generation, or stops where a budget is used up.

  Args:
    state: of the generation that ends.
    event: why it ends.
    reason: the same for people.
    lost: nodes to replace; the fault is theirs, not the run's.
    kind: of the action where no node is lost.
    free: whether neither budget counts this end.
    step: the checkpoint to restore; None: the newest valid one.
    steps: batches to skip from there.
  """
  if state.draining == '':
    return state, stop(f'{reason}, while the run was stopping')
  if state.draining is not None:
    lost = (state.draining, *(node for node in lost if node != state.draining))
  restarts, fruitless = state.restarts, state.fruitless
  # A failure before the first step belongs to the incident before it.
  if not free and (state.running or not restarts):
    restarts = (*restarts, event.time_s)
  if not (lost or free):
    fruitless = 0 if state.gained else fruitless + 1
  after = state_lib.without(state, lost)
  state = (after or state).but(
    generation=state.generation + 1,
    running=False,
    gained=False,
    restarts=tuple(t for t in restarts if t > event.time_s - HOUR_S),
    fruitless=fruitless,
    draining=None,
  )
  if exhausted := _exhausted(state, reason):
    return state, exhausted
  if after is None:
    return state, stop(f'{reason}; no spare takes the place', node=lost[0])
  return state, Action(
    kind='replace_node' if lost else kind,
    node=lost[0] if lost else event.node,
    step=step,
    steps=steps,
    delay_s=_delay_s(state),
    reason=reason,
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


def _exhausted(state: State, reason: str) -> Action | None:
  policy = state.policy
  if state.fruitless >= policy.no_progress:
    why = f'{state.fruitless} generations in a row sealed no checkpoint'
    why = f'{why}; the last ended by: {reason}'
    return stop(why, code=exit_codes.NO_PROGRESS)
  if len(state.restarts) > policy.restarts_per_hour:
    return stop(f'{len(state.restarts)} incidents in an hour; {reason}')
  return None


def _delay_s(state: State) -> float:
  """No wait after a first failure, then 1, 2, 4, ... seconds."""
  failures = max(state.fruitless, len(state.restarts) - 2)
  if failures < 2:
    return 0.0
  return min(state.policy.backoff_s, 2.0 ** (failures - 2))
