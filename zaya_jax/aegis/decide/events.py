# SPDX-License-Identifier: Apache-2.0
"""What the supervisor sees and what it does: `decide` maps one to the other.

Both are plain data, written to incidents.jsonl, so that a decision can be made
again from the file alone.
"""

import dataclasses
from typing import Literal

# Kinds that agents and the supervisor report. Any other kind is the name of a
# rule, whose `action` says what is wanted.
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
  'wrong_result',  # A step executed again gave other bits on the same device.
  'corrupt_replica',  # A vote or another device says that a rank is wrong.
  'stop_requested',  # SIGTERM or Ctrl-C to the supervisor.
  'drained',  # All ranks saved and ended, as checkpoint_and_drain asked.
  'done',  # All ranks ended well: the run is complete.
)

# Of these a rule may name, besides those that concern the whole run.
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
  """How far a rank is, as its agent reads it.

  Attributes:
    rank: which.
    node: where it runs.
    phase: as its beat says: import, init, restore, compile, data, step, ...
    entered: the last step that it entered.
    done: the last step that it finished.
    process: its letter in /proc/PID/stat: T is stopped, D waits for a device.
    exit_code: None while it runs; negative: the signal that ended it.
  """

  rank: int
  node: str
  phase: str = ''
  entered: int = 0
  done: int = 0
  process: str = ''
  exit_code: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Event:
  """One thing that was seen.

  Attributes:
    time_s: seconds since 1970 by a clock that never steps back: that of the
      supervisor's start plus monotonic time since.
    kind: one of KINDS, or the name of a rule.
    node: where.
    rank: of which rank; for an exit, the first that ended.
    step: at which step; for `sealed`, of which.
    detail: what a person wants to read; log lines are escaped and cut.
    source: who says so. What trainers print never acts on a node.
    action: what the rule asks for; '' for KINDS.
    good_step: the last step whose results are known to be right.
    seals: all sealed steps that are there, for `sealed`, oldest first.
    progress: of all ranks, for `exit` and `hang`.
  """

  time_s: float
  kind: str
  node: str | None = None
  rank: int | None = None
  step: int | None = None
  detail: str = ''
  source: Source = 'agent'
  action: ActionKind | Literal[''] = ''
  good_step: int | None = None
  seals: tuple[int, ...] = ()
  progress: tuple[Progress, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Action:
  """One thing to do.

  `replace_node`, `restart` and `rollback` end the generation: kill its ranks,
  wait `delay_s`, and start the next on `State.nodes`, which is already the new
  set. `checkpoint_and_drain` asks the ranks to save and end (SIGTERM), after
  which the supervisor reports `drained`.

  Attributes:
    kind: which.
    node: the one to drain and quarantine, or that is warned about.
    step: the checkpoint to restore; None: the newest valid one.
    steps: batches to skip after that checkpoint, besides those that have been
      skipped there (rollback); `State.skip` has the sum.
    delay_s: seconds to wait before the next generation starts.
    reason: one sentence for the log.
    exit_code: of the supervisor, for `stop` (and for the end of a drain).
  """

  kind: ActionKind
  node: str | None = None
  step: int | None = None
  steps: int = 0
  delay_s: float = 0.0
  reason: str = ''
  exit_code: int | None = None
