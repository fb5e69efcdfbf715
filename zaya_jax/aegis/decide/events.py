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
  'agent_lost',  # Agents do not answer; `nodes`, all that were lost together.
  'not_started',  # `nodes`: no hello in time; `detail`: what they printed.
  'unhealthy',  # `nodes` failed the health check; `detail`: its words.
  'returned',  # An absent or awaited node said hello and passed the check.
  'paused',  # The supervisor itself did not run for a while.
  'storage',  # The run directory cannot be written.
  'slow_rank',  # Behind the others in one more window of steps.
  'running',  # A generation finished its first step.
  'sealed',  # The checkpoint of `step` has its seal.
  'save_failed',  # A rank says that a checkpoint could not be written.
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

# Kinds that a line of a log may be, besides the names of rules.
OF_LINES = ('out_of_memory', 'loss_spike', 'not_finite', 'save_failed')

# Actions on one node, which no line of a trainer may cause.
NODE_ACTIONS = ('checkpoint_and_drain', 'replace_node')

# 'rank' is what a rank itself has recorded in incidents.jsonl; 'trainer' is
# text of its log, which may say anything: people are told, nothing else.
Source = Literal['agent', 'kern', 'journal', 'trainer', 'rank', 'metrics']

ActionKind = Literal[
  'ignore',
  'warn',
  'checkpoint_and_drain',
  'replace_node',
  'restart',
  'rollback',
  'wait',
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
  # Several, seen within one moment, in place of `node`.
  nodes: tuple[str, ...] = ()
  by: str | None = None  # The node whose agent says so: believed of no other.
  final: bool = False  # After `wait`: `nodes` have not come back in time.
  rank: int | None = None  # For `exit`, the first that ended.
  step: int | None = None
  detail: str = ''  # For people; lines of logs are escaped and cut.
  source: Source = 'agent'
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

  `wait` starts nothing: `State.waiting` has the nodes to connect to again.
  Each that says hello and passes its health check is reported as `returned`;
  the last of them brings `restart`. If their ranks have gone on all the time,
  `running` is reported instead, and nothing is restarted. Nodes that have not
  returned after `delay_s` are reported together: `agent_lost`, `final`.
  Nodes in `State.absent` are tried again and again, also while a generation
  runs; one that is back is `returned`, too, and becomes a spare.
  """

  kind: ActionKind
  node: str | None = None  # The one that it is about.
  condemned: tuple[str, ...] = ()  # Nodes that it puts into quarantine.
  run: tuple[str, ...] = ()  # --aegis.drain and --aegis.reboot of each.
  step: int | None = None  # To restore; None: the newest valid checkpoint.
  # Batches to skip after `step`, besides those skipped there before;
  # `State.skip` has the sum.
  steps: int = 0
  delay_s: float = 0.0
  reason: str = ''  # One sentence for the log.
  exit_code: int | None = None  # Of the supervisor, if the run ends with it.
