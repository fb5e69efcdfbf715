# SPDX-License-Identifier: Apache-2.0
"""The settings of the supervisor."""

import dataclasses

from zaya_jax.config import fields

field = fields.field


@dataclasses.dataclass(frozen=True, kw_only=True)
class AegisConfig:
  """What --mode=supervise starts, how long it waits and when it gives up."""

  nodes: tuple[str, ...] = field(('local',), 'Names of the nodes, spares last.')
  spares: int = field(0, 'How many of them wait to replace one.', minimum=0)
  ranks_per_node: int = field(
    1, 'Processes on each node, of one device each if several.', minimum=1
  )
  agent: str = field(
    '',
    "Command that starts a program on {node}, as 'srun --overlap --ntasks=1 "
    "--nodelist={node}'; empty: all nodes are this machine.",
  )
  standby: bool = field(
    True, 'Keeps a process per rank that has imported all for the next start.'
  )
  step_limit_s: float = field(
    0.0,
    'Seconds without progress in a step that count as a hang; 0: five times '
    'the 99th percentile, at least 5.',
    minimum=0.0,
  )
  phase_limit_s: float = field(
    1800.0,
    'The same for every other phase, an evaluation say, and the first steps.',
    minimum=1.0,
  )
  grace_s: float = field(
    60.0, 'Seconds for the ranks to save and end when asked.', minimum=0.0
  )
  restarts_per_hour: int = field(
    10, 'Restarts after which it gives up with 75.', minimum=0
  )
  no_progress: int = field(
    3, 'Restarts without a new checkpoint until it stops with 93.', minimum=1
  )
  shrink: bool = field(False, 'Goes on with fewer nodes when no spare is left.')
  logs: tuple[str, ...] = field(
    (),
    'What agents watch, SOURCE:PATH each, as kern:/dev/kmsg, or journal: for '
    '`journalctl -f -o json`; {node} is the name of the node.',
  )
  metrics_url: str = field(
    '', 'Counters that agents watch, as http://127.0.0.1:5000/metrics.'
  )
  rules: tuple[str, ...] = field(
    (), 'Rule files, or folders of them; empty: zaya_jax/aegis/watch/rules.'
  )
  drain: str = field(
    '',
    "Command that is told of a lost {node} and the {reason}, as 'scontrol "
    "update NodeName={node} State=DRAIN Reason={reason}'.",
  )
  health: str = field(
    '',
    "Command that must succeed before a {node} joins, as 'srun --overlap "
    "--nodelist={node} CHECK'.",
  )
  port: int = field(
    0,
    'Port for GET /metrics and /healthz on 127.0.0.1; 0: none.',
    minimum=0,
    maximum=65_535,
  )
  replay: str = field(
    '', 'Only makes the decisions of this incidents.jsonl again.'
  )

  def __post_init__(self) -> None:
    fields.check(self, 'aegis.')
    if len(set(self.nodes)) < len(self.nodes):
      raise fields.UsageError(
        f'--aegis.nodes={",".join(self.nodes)} names a node twice.'
      )
    if self.spares >= len(self.nodes):
      raise fields.UsageError(
        f'--aegis.spares={self.spares} leaves none of the {len(self.nodes)} '
        '--aegis.nodes for the run.'
      )
