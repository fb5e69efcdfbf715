# SPDX-License-Identifier: Apache-2.0
"""The settings of the supervisor."""

import dataclasses

from zaya_jax.config import fields

field = fields.field


@dataclasses.dataclass(frozen=True, kw_only=True)
class AegisConfig(fields.Section, prefix='aegis.'):
  """Supervision (--mode=supervise): nodes, timeouts and restarts."""

  nodes: tuple[str, ...] = field(('local',), 'Names of the nodes, spares last.')
  spares: int = field(0, 'Number of nodes that are spares.', minimum=0)
  ranks_per_node: int = field(
    1, 'Processes per node; if several, of one device each.', minimum=1
  )
  agent: str = field(
    '',
    "Command that starts a program on {node}, such as 'srun --overlap "
    "--ntasks=1 --nodelist={node}'; default: all nodes are this machine.",
  )
  standby: bool = field(
    True,
    'Keeps a standby process per rank, with everything imported, for the next '
    'restart.',
  )
  step_limit_s: float = field(
    0.0,
    'Seconds without progress in a step that count as a hang; 0: five times '
    'the 99th percentile, at least 5.',
    minimum=0.0,
  )
  phase_limit_s: float = field(
    1800.0,
    'The same for other phases, such as evaluation, and for the first steps.',
    minimum=1.0,
  )
  grace_s: float = field(
    60.0, 'Seconds that ranks have to save and exit when asked to.', minimum=0.0
  )
  preempt_file: str = field(
    '',
    'File that announces the end of the machines: once it is made or touched, '
    'the run saves and exits with code 75, as after SIGTERM or SIGUSR1.',
  )
  restarts_per_hour: int = field(
    10,
    'Restarts in an hour; one more ends the run with exit code 75.',
    minimum=0,
  )
  no_progress: int = field(
    3,
    'Restarts without a new checkpoint that end the run with exit code 93.',
    minimum=1,
  )
  condemn_per_hour: int = field(
    2,
    'Nodes that may be put into quarantine in an hour; a person must look '
    'when it takes more.',
    minimum=0,
  )
  condemn_share: float = field(
    0.25,
    'Largest share of all nodes in quarantine at a time; one node is always '
    'allowed if there are two.',
    minimum=0.0,
    maximum=1.0,
  )
  quarantine_h: float = field(
    24.0,
    'Hours in quarantine, after which a node returns if it starts and passes '
    '--aegis.health; 0 at the next start releases all.',
    minimum=0.0,
  )
  start_limit_s: float = field(
    120.0, 'Seconds that agents have to start.', minimum=1.0
  )
  outage_wait_s: float = field(
    600.0,
    'Seconds to wait for many nodes that are lost at once, as when a switch '
    'fails, before others take their places.',
    minimum=0.0,
  )
  lease: str = field(
    'local',
    'Where the owner of the run is known: local, etcd://HOST:PORT[/PREFIX] or '
    'kubernetes://NAMESPACE[/PREFIX].',
  )
  lease_s: float = field(
    20.0,
    'Seconds without the supervisor after which agents kill their ranks and '
    'another supervisor may begin.',
    minimum=1.0,
  )
  shrink: bool = field(False, 'Continues with fewer nodes if no spare is left.')
  logs: tuple[str, ...] = field(
    (),
    'Logs that agents watch, each SOURCE:PATH, such as kern:/dev/kmsg, or '
    'journal: for `journalctl -f -o json`; {node} is the name of the node.',
  )
  metrics_url: str = field(
    '', 'Metrics that agents watch, such as http://127.0.0.1:5000/metrics.'
  )
  telemetry: tuple[str, ...] = field(
    (),
    'Tools that agents ask every 30 s for counters: amd_smi, ethtool, ip, rdma '
    'and infiniband.',
  )
  rules: tuple[str, ...] = field(
    (), 'Rule files, or folders with them; default: zaya_jax/aegis/watch/rules.'
  )
  drain: str = field(
    '',
    "Command for a {node} in quarantine, with the {reason}, such as 'scontrol "
    "update NodeName={node} State=DRAIN Reason={reason}'; it is printed.",
  )
  reboot: str = field(
    '',
    'Command that mends a {node} in quarantine after --aegis.drain, such as '
    "'ssh {node} sudo reboot'; it is printed.",
  )
  drain_act: bool = field(
    False, 'Runs --aegis.drain and --aegis.reboot instead of printing them.'
  )
  health: str = field(
    '',
    "Command that must succeed before a {node} joins, such as 'srun --overlap "
    "--nodelist={node} CHECK'.",
  )
  port: int = field(
    0,
    'Port for GET /metrics and /healthz; 0: none.',
    minimum=0,
    maximum=65_535,
  )
  bind: str = field(
    '127.0.0.1',
    'Address of --aegis.port and --log.metrics_port; 0.0.0.0 or :: lets other '
    'machines read it.',
  )
  notify: str = field(
    '',
    'Where incidents are posted as JSON, such as a webhook of Slack: '
    'https://…, or env:NAME or file:PATH, which have that address.',
  )
  replay: str = field(
    '', 'Repeats the decisions in this incidents.jsonl, and nothing else.'
  )

  def __post_init__(self) -> None:
    super().__post_init__()
    if len(set(self.nodes)) < len(self.nodes):
      raise fields.UsageError(
        f'--aegis.nodes={",".join(self.nodes)} names a node twice.'
      )
    if self.spares >= len(self.nodes):
      raise fields.UsageError(
        f'--aegis.spares={self.spares} leaves none of the {len(self.nodes)} '
        '--aegis.nodes for the run.'
      )
