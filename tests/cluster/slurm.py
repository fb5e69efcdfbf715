# SPDX-License-Identifier: Apache-2.0
"""Slurm in a box: one controller, one slurmd on each node, a key of its own."""

import os
import pathlib
import signal
import stat
import subprocess
import time

from tests.cluster import box as box_lib

_WAIT_S = 20.0
# The nodes have more processors and GPUs than there are, as deploy/ asks for.
_CONF = """
ClusterName=box
SlurmctldHost=control
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/builtin
SchedulerParameters=sched_interval=2
ReturnToService=2
SlurmdTimeout=10
KillWait=5
MessageTimeout=10
MinJobAge=600
GresTypes=gpu
SlurmdParameters=config_overrides
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
NodeName=n[1-{count}] CPUs=96 RealMemory=1000 Gres=gpu:8 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class Slurm:
  """Runs Slurm in a box.

  Args:
    box: its nodes become those of Slurm.
    folder: for sockets, logs and state.
  """

  def __init__(self, box: box_lib.Box, folder: pathlib.Path):
    self._box, self._folder = box, folder
    conf = folder / 'slurm.conf'
    conf.write_text(_CONF.format(folder=folder, count=len(box.nodes)))
    (folder / 'gres.conf').write_text(f'Name=gpu File={folder}/gpu[0-7]\n')
    for i in range(8):
      os.mknod(folder / f'gpu{i}', stat.S_IFCHR | 0o600, os.makedev(1, 3))
    (folder / 'cgroup.conf').write_text('CgroupPlugin=cgroup/v1\n')
    (folder / 'state').mkdir()
    self.environment = {**os.environ, 'SLURM_CONF': str(conf)}
    self._start_munge()
    self.controller = self._daemon(box, 'slurmctld')
    for name in box.nodes:
      self.start_node(name)
    self.await_nodes()

  def start_node(self, name: str) -> None:
    """Starts slurmd on a node."""
    (self._folder / f'spool-{name}').mkdir(exist_ok=True)
    self._daemon(self._box.nodes[name], 'slurmd')

  def command(self, line: str, *, check: bool = True) -> str:
    """Runs one of Slurm's commands on control."""
    return self._box.run(
      f'export SLURM_CONF={self._folder}/slurm.conf; {line}', check=check
    )

  def states(self) -> dict[str, str]:
    """The state of each node."""
    lines = self.command('sinfo -h -N -o "%N %T"').splitlines()
    return dict(line.split() for line in lines)

  def await_nodes(self) -> None:
    """Waits until all nodes are idle; those that were drained come back."""
    until = time.monotonic() + _WAIT_S
    while set(self.states().values()) != {'idle'}:
      if time.monotonic() > until:
        raise RuntimeError(f'nodes: {self.states()}')
      for name, state in self.states().items():
        if state not in ('idle', 'unknown', 'completing'):
          self.command(
            f'scontrol update NodeName={name} State=RESUME', check=False
          )
      time.sleep(0.2)

  def submit(self, words: str, environment: dict[str, str]) -> str:
    """Gives `sbatch` these words; returns the number of the job."""
    with self._box.start(
      ['sh', '-c', f'sbatch --parsable {words}'],
      env={**self.environment, **environment},
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
    ) as started:
      said, error = started.communicate(timeout=60)
    if started.returncode:
      raise RuntimeError(f'sbatch: {error}')
    return said.strip()

  def job(self, number: str) -> dict[str, str]:
    """What Slurm says of a job."""
    said = self.command(f'scontrol show job -o {number}')
    pairs = (word.partition('=') for word in said.split())
    return {name: value for name, _, value in pairs}

  def cancel(self, number: str) -> None:
    """Ends a job, whatever its script does."""
    self.command(f'scontrol update JobId={number} Requeue=0', check=False)
    self.command(f'scancel {number}', check=False)

  def pause(self) -> None:
    """Stops the controller: commands wait for it, then fail."""
    os.kill(self._controller_pid(), signal.SIGSTOP)

  def resume(self) -> None:
    """Lets the controller go on."""
    os.kill(self._controller_pid(), signal.SIGCONT)

  def _controller_pid(self) -> int:
    return box_lib.last_process(self.controller.pid)

  def _start_munge(self) -> None:
    folder, key = self._folder, self._folder / 'munge.key'
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    files = {
      'key': 'key',
      'socket': 'socket',
      'pid': 'pid',
      'log': 'log',
      'seed': 'seed',
    }
    self._box.start(
      ['munged', '--foreground', '--force', '--num-threads=2']
      + [f'--{n}-file={folder}/munge.{n}' for n in files if n != 'socket']
      + [f'--socket={folder}/munge.socket'],
      stderr=subprocess.DEVNULL,
    )
    until = time.monotonic() + _WAIT_S
    while not (folder / 'munge.socket').exists():
      if time.monotonic() > until:
        raise RuntimeError((folder / 'munge.log').read_text())
      time.sleep(0.05)

  def _daemon(self, where, name: str) -> subprocess.Popen:
    with (self._folder / f'{name}.out').open('a') as file:
      return where.start(
        [name, '-D'], env=self.environment, stdout=file, stderr=file
      )
