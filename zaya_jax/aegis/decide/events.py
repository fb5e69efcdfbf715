# SPDX-License-Identifier: Apache-2.0
"""Events, which the supervisor sees, and actions, which it takes.

`decide` maps one to the other. Both are plain data, written to incidents.jsonl,
so that a decision can be made again from the file alone.
"""

import dataclasses
from typing import Literal

# Any other kind is the name of a rule, whose `action` says what to do.
KINDS = (
  'exit',  # A rank ended before the run did; `progress` has the exit codes.
  'hang',  # Nobody progressed within the limit of the phase; `progress`.
  'agent_lost',  # A node's agent does not answer: the node is gone.
  'slow_rank',  # Behind the others in one more window of steps.
  'unhealthy',  # The health check of a node failed before it took part.
  'node_ready',  # A node may serve as a spare, new or out of repair.
  'running',  # A generation finished its first step.
  'sealed',  # The checkpoint of `step` has its seal.
  'save_failed',  # A checkpoint could not be written.
  'out_of_memory',  # A kernel's line: it killed a process (a shipped rule).
  'not_finite',  # The trainer refused too many steps in a row.
  'refused_step',  # The trainer refused one, for the data or the maths.
  'loss_spike',  # The trainer refused a step whose loss or gradient jumped.
  'wrong_result',  # A step, executed again, gave other bits.
  'corrupt_replica',  # A rank holds other numbers than its replicas.
  'stop_requested',  # SIGTERM or Ctrl-C to the supervisor.
  'drained',  # All ranks saved and ended, as checkpoint_and_drain asked.
  'done',  # All ranks ended well: the run is complete.
)

# Actions on one node, which no line of a trainer may cause.
NODE_ACTIONS = ('checkpoint_and_drain', 'replace_node')

Source = Literal['agent', 'kern', 'journal', 'trainer', 'metrics']

ActionKind = Literal[
  'ignore',
  'warn',
  'checkpoint_and_drain',
  'replace_node',
  'restart',
  'rollback',
  'stop',
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Progress:
  """How far a rank is, as its agent reads it."""

  rank: int
  node: str
  phase: str = ''  # One of `beats.PHASES`.
  entered: int = 0  # The last step that it entered.
  done: int = 0  # The last step that it finished.
  process: str = ''  # In /proc/PID/stat: T is stopped, D waits for a device.
  exit_code: int | None = None  # None while it runs; negative: a signal.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Event:
  """One thing that was seen."""

  # Since 1970, by a clock that never steps back: the calendar time of the
  # supervisor's start plus monotonic time.
  time_s: float
  kind: str  # One of KINDS, or the name of a rule.
  node: str | None = None
  rank: int | None = None  # For `exit`, the first that ended.
  step: int | None = None
  detail: str = ''  # For people; lines of logs are escaped and cut.
  source: Source = 'agent'  # What trainers print never acts on a node.
  action: ActionKind | None = None  # Of the rule; None for KINDS.
  good_step: int | None = None  # The last step known to have right results.
  seals: tuple[int, ...] = ()  # For `sealed`, all that are there, ascending.
  progress: tuple[Progress, ...] = ()  # Of all ranks, for `exit` and `hang`.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Action:
  """One thing to do.

  `replace_node`, `restart` and `rollback` end the generation: its ranks are
  killed and, after `delay_s`, the next starts on `State.nodes`, which is the
  new set already. `checkpoint_and_drain` asks the ranks to save and end
  (SIGTERM), after which the supervisor reports `drained`.
  """

  kind: ActionKind
  node: str | None = None  # To drain and quarantine, or to warn about.
  step: int | None = None  # To restore; None: the newest valid checkpoint.
  # Batches to skip after `step`, besides those skipped there before;
  # `State.skip` has the sum.
  steps: int = 0
  delay_s: float = 0.0
  reason: str = ''  # One sentence for the log.
  exit_code: int | None = None  # Of the supervisor, if the run ends with it.
