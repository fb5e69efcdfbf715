# SPDX-License-Identifier: Apache-2.0
"""All that a decision depends on, besides the event."""

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True, kw_only=True)
class Policy:
  """Budgets and limits.

  Attributes:
    restarts_per_hour: incidents in an hour after which the run stops with 75.
    no_progress: failures without a new sealed step after which it stops (93).
    rollbacks: of numerics, within `rollback_window` steps, before it stops (4).
    rollback_window: steps.
    rollback_steps: how far back the last good step lies when nobody knows it.
    strikes: faults of a node within `strike_window_s` that replace it.
    strike_window_s: seconds.
    slow_windows: of a slow rank that are worth a warning, and a replacement.
    spikes: refused jumps within `rollback_window` steps that roll back.
    failed_saves: in a row, after which the run stops (3).
    out_of_memory: kills by the kernel without a new sealed step that stop it.
    backoff_s: longest wait before a generation.
    node_counts: numbers of nodes that the run may shrink to without spares.
  """

  restarts_per_hour: int = 10
  no_progress: int = 3
  rollbacks: int = 2
  rollback_window: int = 1000
  rollback_steps: int = 100
  strikes: int = 2
  strike_window_s: float = 86_400.0
  slow_windows: tuple[int, int] = (3, 10)
  spikes: int = 3
  failed_saves: int = 3
  out_of_memory: int = 2
  backoff_s: float = 60.0
  node_counts: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class State:
  """What is remembered of a run.

  Attributes:
    policy: budgets and limits.
    size: nodes that the run is meant to have.
    nodes: those of this generation, in the order of their ranks.
    spares: healthy ones that wait.
    quarantine: those that a person or a burn-in must look at.
    generation: number of the present one; ranks of older ones are fenced.
    running: whether a step of it was finished.
    sealed: the newest sealed steps, oldest first.
    restarts: times of incidents within the last hour.
    fruitless: failures since the last seal.
    strikes: (node, time) of faults laid at its door.
    suspects: nodes of the last failure whose culprit is unknown.
    slow: windows of each slow node.
    spikes: steps of refused jumps.
    rollbacks: steps of the numeric failures that were rolled back.
    failed_saves: since the last seal.
    out_of_memory: kills by the kernel since the last seal.
    killed: (node, time) of the last rank that died by SIGKILL.
    memory_lines: (node, time) of the last kernel line about memory.
    draining: node to replace once all have saved; '': the run ends then.
  """

  policy: Policy = Policy()
  size: int = 1
  nodes: tuple[str, ...] = ()
  spares: tuple[str, ...] = ()
  quarantine: tuple[str, ...] = ()
  generation: int = 0
  running: bool = False
  sealed: tuple[int, ...] = ()
  restarts: tuple[float, ...] = ()
  fruitless: int = 0
  strikes: tuple[tuple[str, float], ...] = ()
  suspects: tuple[str, ...] = ()
  slow: Mapping[str, int] = dataclasses.field(default_factory=dict)
  spikes: tuple[int, ...] = ()
  rollbacks: tuple[int, ...] = ()
  failed_saves: int = 0
  out_of_memory: int = 0
  killed: tuple[str, float] | None = None
  memory_lines: tuple[str, float] | None = None
  draining: str | None = None


def start(
  nodes: tuple[str, ...],
  *,
  spares: tuple[str, ...] = (),
  policy: Policy | None = None,
) -> State:
  """The state before the first generation."""
  return State(
    policy=policy or Policy(), size=len(nodes), nodes=nodes, spares=spares
  )
