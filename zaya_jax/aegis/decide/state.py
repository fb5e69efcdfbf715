# SPDX-License-Identifier: Apache-2.0
"""All that a decision depends on, besides the event."""

import dataclasses

Marks = tuple[tuple[str, float], ...]  # (node, time in seconds) each.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Policy:
  """Budgets and limits.

  Attributes:
    restarts_per_hour: incidents in an hour that are dealt with; one more: 75.
    no_progress: generations in a row without a new seal that end the run (93).
    rollbacks: of numerics, within `rollback_window` steps; one more: 4.
    rollback_window: steps.
    rollback_steps: how much farther a second rollback goes back, at least.
    strikes: faults of a node within `strike_window_s` that replace it.
    strike_window_s: seconds.
    slow_windows: windows of a slow rank within an hour that are worth a
      warning, and a replacement.
    spikes: refused jumps within `rollback_window` steps that roll back; each
      for itself does no harm.
    failed_saves: without a seal between them that end the run (3).
    out_of_memory: kills by the kernel without a seal between them (93).
    evict_at_most: nodes that go together when one of them is to blame.
    backoff_s: longest wait before a generation; the first has none.
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
  spikes: int = 20
  failed_saves: int = 3
  out_of_memory: int = 2
  evict_at_most: int = 2
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
    running: whether it finished a step.
    gained: whether it sealed a new step.
    sealed: the newest sealed steps, oldest first.
    restarts: times of the incidents of the last hour.
    fruitless: generations in a row that failed without a new seal.
    strikes: faults that were laid at the door of a node.
    slow: windows of slow ranks.
    suspects: nodes of the last failure that was nobody's for sure.
    spikes: steps of refused jumps.
    rollbacks: steps of the numeric failures that were rolled back.
    failed_saves: since the last seal.
    out_of_memory: kills by the kernel since the last seal.
    killed: ranks that died by SIGKILL.
    memory_lines: lines of kernels that were out of memory.
    skip: (step, batches) to leave out when a generation goes on from `step`.
    draining: node to replace once all have saved; '': the run ends then.
  """

  policy: Policy = Policy()
  size: int = 1
  nodes: tuple[str, ...] = ()
  spares: tuple[str, ...] = ()
  quarantine: tuple[str, ...] = ()
  generation: int = 0
  running: bool = False
  gained: bool = False
  sealed: tuple[int, ...] = ()
  restarts: tuple[float, ...] = ()
  fruitless: int = 0
  strikes: Marks = ()
  slow: Marks = ()
  suspects: tuple[str, ...] = ()
  spikes: tuple[int, ...] = ()
  rollbacks: tuple[int, ...] = ()
  failed_saves: int = 0
  out_of_memory: int = 0
  killed: Marks = ()
  memory_lines: Marks = ()
  skip: tuple[int, int] = (0, 0)
  draining: str | None = None


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
  return dataclasses.replace(
    fresh,
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
  return dataclasses.replace(
    state,
    nodes=tuple(nodes[:size]),
    spares=(*nodes[size:], *spares),
    quarantine=(*state.quarantine, *sorted(set(lost) - {*state.quarantine})),
  )


def mark(marks: Marks, node: str, time_s: float, *, keep_s: float) -> Marks:
  """Adds a mark, and forgets those that are older than `keep_s`."""
  kept = tuple(m for m in marks if m[1] >= time_s - keep_s)
  return (*kept, (node, time_s))
