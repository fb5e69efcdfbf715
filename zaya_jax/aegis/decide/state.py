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
  backoff_s: float = 60.0  # Longest wait before a generation.
  node_counts: tuple[int, ...] = ()  # Sizes to shrink to without spares.


@dataclasses.dataclass(frozen=True, kw_only=True)
class State:
  """What is remembered of a run."""

  policy: Policy = Policy()
  size: int = 1  # Nodes that the run should have.
  nodes: tuple[str, ...] = ()  # Of this generation, in the order of ranks.
  spares: tuple[str, ...] = ()  # Healthy nodes that wait.
  quarantine: tuple[str, ...] = ()  # Nodes to be examined or burnt in.
  generation: int = 0  # Ranks of older ones are fenced.
  running: bool = False  # The generation has finished a step,
  gained: bool = False  # and sealed a new one.
  sealed: tuple[int, ...] = ()  # The newest sealed steps, oldest first.
  restarts: tuple[float, ...] = ()  # Times of the last hour's incidents.
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
  absent: tuple[str, ...] = ()  # Nodes that did not start or come back.
  alarm: str = ''  # Why a person must look; '' if none must.

  def but(self, **changes: Any) -> 'State':
    """The state with other values of some fields."""
    return dataclasses.replace(self, **changes)

  def mark(self, field: str, event: events.Event, *, keep_s: float) -> 'State':
    """Adds a mark on the node of `event`; forgets those older than `keep_s`."""
    oldest = event.time_s - keep_s
    kept = (mark for mark in getattr(self, field) if mark[1] >= oldest)
    return self.but(**{field: (*kept, (event.node, event.time_s))})


def start(
  nodes: tuple[str, ...],
  *,
  spares: tuple[str, ...] = (),
  policy: Policy | None = None,
  last: State | None = None,
) -> State:
  """The state before the first generation.

  Args:
    nodes: those of the run, in the order of their ranks.
    spares: those that wait.
    policy: budgets and limits.
    last: of the supervisor before this one, if there was one. What it held
      against nodes is not forgotten: those in quarantine become the last
      spares. Budgets that it has used up are filled again.
  """
  fresh = State(
    policy=policy or Policy(), size=len(nodes), nodes=nodes, spares=spares
  )
  if last is None:
    return fresh
  ordered = sorted((*nodes, *spares), key=lambda node: node in last.quarantine)
  return fresh.but(
    nodes=tuple(ordered[: len(nodes)]),
    spares=tuple(ordered[len(nodes) :]),
    restarts=last.restarts,
    strikes=last.strikes,
    skip=last.skip,
  )


def without(state: State, lost: tuple[str, ...]) -> State | None:
  """Puts nodes into quarantine and spares in their places.

  A run that has fewer nodes than it should takes what has become a spare
  again, or shrinks to the largest of `policy.node_counts` that it can fill.

  Returns:
    The state with other nodes; None where there are too few.
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
  sizes = (state.size, *state.policy.node_counts)
  size = max((n for n in sizes if 0 < n <= len(nodes)), default=0)
  if not size:
    return None
  return state.but(
    nodes=tuple(nodes[:size]),
    spares=(*nodes[size:], *spares),
    quarantine=(*state.quarantine, *sorted(set(lost) - {*state.quarantine})),
  )
