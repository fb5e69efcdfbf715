# SPDX-License-Identifier: Apache-2.0
"""What a decision depends on besides the event."""

import dataclasses
from typing import Any

from zaya_jax.aegis.decide import events

Marks = tuple[tuple[str, float], ...]  # (node, time in seconds) each.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Policy:
  """Budgets and limits; in brackets the exit code when one is used up."""

  restarts_per_hour: int = 10  # Incidents in an hour (75).
  no_progress: int = 3  # Generations in a row without a new seal (93).
  rollbacks: int = 2  # Of numerics, within `rollback_window` steps (4).
  rollback_window: int = 1000
  rollback_steps: int = 100  # How much farther the second goes back, at least.
  strikes: int = 2  # Faults within `strike_window_s` that replace a node.
  strike_window_s: float = 86_400.0
  # Windows of a slow rank in an hour: that warn, that replace its node.
  slow_windows: tuple[int, int] = (3, 10)
  spikes: int = 20  # Within `rollback_window` steps: one alone is harmless.
  failed_saves: int = 3  # Without a seal between them (3).
  out_of_memory: int = 2  # Kills without a seal between them (93).
  evict_at_most: int = 2  # Nodes replaced together, if one must be the cause.
  # Nodes put into quarantine in an hour, and share of all nodes at a time.
  condemn_per_hour: int = 2
  condemn_share: float = 0.25
  quarantine_s: float = 86_400.0
  outage_wait_s: float = 600.0  # For many nodes that were lost at once.
  # Commands about a node in quarantine: --aegis.drain, --aegis.reboot.
  orders: tuple[str, ...] = ()
  backoff_s: float = 60.0  # Longest wait before a generation.
  node_counts: tuple[int, ...] = ()  # Sizes to shrink to without spares.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Held:
  """A node in quarantine."""

  node: str
  reason: str = ''
  since_s: float = 0.0  # As `Event.time_s`.
  until_s: float = 0.0  # Then it is absent: it returns if its check passes.


@dataclasses.dataclass(frozen=True, kw_only=True)
class State:
  """What is remembered of a run."""

  policy: Policy = Policy()
  size: int = 1  # Nodes that the run should have.
  nodes: tuple[str, ...] = ()  # Of this generation, in the order of ranks.
  spares: tuple[str, ...] = ()  # Healthy nodes that wait.
  quarantine: tuple[Held, ...] = ()  # Nodes to be examined or burnt in.
  absent: tuple[str, ...] = ()  # Nodes that are not there, or not proven.
  waiting: tuple[str, ...] = ()  # Of `nodes`: those that `wait` waits for.
  alarm: str = ''  # Why a person must look: nothing runs, or not for long.
  generation: int = 0  # Ranks of older ones are fenced.
  proven: bool = False  # Some generation of this supervisor has run.
  running: bool = False  # The generation has finished a step,
  gained: bool = False  # and sealed a new one.
  sealed: tuple[int, ...] = ()  # The newest sealed steps, oldest first.
  restarts: tuple[float, ...] = ()  # Times of the last hour's incidents.
  condemned: Marks = ()  # Nodes put into quarantine in the last hour.
  paused_s: float | None = None  # When the supervisor last did not run.
  fruitless: int = 0  # Generations in a row that failed without a new seal.
  strikes: Marks = ()  # Faults of nodes.
  slow: Marks = ()  # Windows of slow ranks.
  suspects: tuple[str, ...] = ()  # Of the last hang without a clear cause.
  spikes: tuple[int, ...] = ()  # Steps refused for a jump of the loss.
  rollbacks: tuple[int, ...] = ()  # Steps of failures that rolled back.
  failed_saves: int = 0  # Since the last seal.
  out_of_memory: int = 0  # Kills by the kernel since the last seal.
  killed: Marks = ()  # Ranks that died by SIGKILL.
  memory_lines: Marks = ()  # Lines of kernels that were out of memory.
  skip: tuple[int, int] = (0, 0)  # (step, batches to leave out after it).
  draining: str | None = None  # Node to replace after a save; '': the run ends.
  drain_reason: str = ''

  @property
  def quarantined(self) -> tuple[str, ...]:
    """Names of the nodes in quarantine."""
    return tuple(held.node for held in self.quarantine)

  def but(self, **changes: Any) -> 'State':
    """The state with other values of some fields."""
    return dataclasses.replace(self, **changes)

  def mark(self, field: str, event: events.Event, *, keep_s: float) -> 'State':
    """Adds a mark on the node of `event`; forgets those older than `keep_s`."""
    marks = recent(getattr(self, field), event.time_s, keep_s)
    return self.but(**{field: (*marks, (event.node, event.time_s))})


def recent(marks: Marks, time_s: float, keep_s: float) -> Marks:
  """The marks near a time.

  Those far ahead of it are of a clock that was wrong: they do not count.
  """
  return tuple(mark for mark in marks if abs(time_s - mark[1]) <= keep_s)


def start(
  nodes: tuple[str, ...],
  *,
  spares: tuple[str, ...] = (),
  policy: Policy | None = None,
  last: State | None = None,
  held: tuple[Held, ...] = (),
  time_s: float = 0.0,
) -> State:
  """The state before the first generation.

  Budgets that the supervisor before has used up are filled again, but what it
  held against nodes is not forgotten. A node whose time in quarantine is over
  becomes one of the last spares, as every node must start and pass its check.

  Args:
    nodes: those of the run, in the order of their ranks.
    spares: those that wait.
    policy: budgets and limits.
    last: of the supervisor before this one, if there was one.
    held: what other runs hold in quarantine.
    time_s: now, as `Event.time_s`; needed with `last` or `held`.

  Returns:
    The state. It has no `nodes`, and an alarm, where too few are left.
  """
  fresh = State(
    policy=policy or Policy(), size=len(nodes), nodes=nodes, spares=spares
  )
  if last is not None:
    held = (*last.quarantine, *held)
    fresh = fresh.but(
      restarts=last.restarts,
      condemned=last.condemned,
      strikes=last.strikes,
      skip=last.skip,
    )
  kept = {h.node: h for h in _unexpired(held, fresh.policy, time_s)}
  once = {h.node for h in held}
  free = [node for node in (*nodes, *spares) if node not in kept]
  free.sort(key=lambda node: node in once)
  fresh = fresh.but(quarantine=tuple(kept.values()), spares=())
  size = _size(fresh, len(free))
  why = f'{len(kept)} of {len(nodes) + len(spares)} nodes are in quarantine'
  names = ', '.join(f'{h.node} ({h.reason})' for h in kept.values())
  return fresh.but(
    nodes=tuple(free[:size]),
    spares=tuple(free[size:]),
    alarm='' if size else f'{why}: {names}',
  )


def expire(state: State, time_s: float) -> State:
  """Makes nodes absent whose time in quarantine is over."""
  kept = _unexpired(state.quarantine, state.policy, time_s)
  if kept == state.quarantine:
    return state
  names = {held.node for held in kept}
  over = tuple(node for node in state.quarantined if node not in names)
  return state.but(quarantine=kept, absent=(*state.absent, *over))


def without(state: State, lost: tuple[str, ...]) -> State | None:
  """Puts spares in the places of nodes.

  A run that has fewer nodes than it should takes what has become a spare
  again, or shrinks to the largest of `policy.node_counts` that it can fill.

  Returns:
    The state without the lost nodes; None where too few are left.
  """
  spares = [node for node in state.spares if node not in lost]
  nodes = []
  for node in state.nodes:
    if node not in lost:
      nodes.append(node)
    elif spares:
      nodes.append(spares.pop(0))
  while spares and len(nodes) < state.size:
    nodes.append(spares.pop(0))
  size = _size(state, len(nodes))
  if not size:
    return None
  return state.but(nodes=tuple(nodes[:size]), spares=(*nodes[size:], *spares))


def _size(state: State, count: int) -> int:
  sizes = (state.size, *state.policy.node_counts)
  return max((n for n in sizes if 0 < n <= count), default=0)


def _unexpired(
  quarantine: tuple[Held, ...], policy: Policy, time_s: float
) -> tuple[Held, ...]:
  """Those that stay; a clock that was ahead keeps nobody longer than others."""
  latest_s = time_s + policy.quarantine_s
  return tuple(
    held
    if held.until_s <= latest_s
    else dataclasses.replace(held, until_s=latest_s)
    for held in quarantine
    if min(held.until_s, latest_s) > time_s
  )
