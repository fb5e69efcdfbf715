# SPDX-License-Identifier: Apache-2.0
"""The drills: which fault, and what must come of it."""

import dataclasses
import os
import signal
import socket
import time
from collections.abc import Callable
from typing import Any

from zaya_jax.config import exit_codes

_SPARE = ('--aegis.nodes=a,b,c', '--aegis.spares=1')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Drill:
  """One drill.

  Attributes:
    about: what happens, for people.
    faults: as `faults.parse` reads them.
    flags: of the run, beside those of all drills.
    generations: that there must be.
    code: exit code of the supervisor.
    finishes: whether the last step is reached.
    equal: whether the result is that of the undisturbed run.
    then_resume: whether the same command is given again.
    disturb: what else happens while it runs.
    check: gives what is wrong afterwards.
  """

  about: str = ''
  faults: str = ''
  flags: tuple[str, ...] = ()
  generations: int = 2
  code: int = exit_codes.DONE
  finishes: bool = True
  equal: bool = True
  then_resume: bool = False
  disturb: Callable[[Any], None] = lambda run: None
  check: Callable[[Any], list[str]] = lambda run: []


def _seen(kind: str, **facts: Any) -> Callable[[Any], list[str]]:
  """Checks that an incident of a kind says something."""

  def check(run: Any) -> list[str]:
    for row in run.incidents(kind):
      # What is 0 is left out of the file.
      if all(row.get(key, 0) == value for key, value in facts.items()):
        return []
    return [f'no incident {kind} with {facts}']

  return check


def _acted(kind: str, node: str) -> Callable[[Any], list[str]]:
  """Checks that something was done about a node."""

  def check(run: Any) -> list[str]:
    done = [r['done'] for r in run.incidents('exit', 'hang', 'agent_lost')]
    found = any(d['kind'] == kind and d.get('node') == node for d in done)
    return [] if found else [f'{kind} of {node} was not done']

  return check


def _says(words: str) -> Callable[[Any], list[str]]:
  return lambda run: [] if run.said(words) else [f'{words!r} was not said']


def _send(*numbers: int) -> Callable[[Any], None]:
  """Sends signals to the supervisor once a rank has had its fault."""

  def disturb(run: Any) -> None:
    run.await_fault()
    for number in numbers:
      run.supervisor.send_signal(number)
      time.sleep(0.5)  # Two at once are one.

  return disturb


def _second_supervisor(run: Any) -> None:
  run.await_fault()
  log = run.run_dir / 'second.log'
  code = run.command('', log).wait(60)
  if code != exit_codes.USAGE or 'is in use by' not in log.read_text():
    os.rename(log, run.run_dir / 'second_was_let_in.log')


def _occupy_port(run: Any) -> None:
  """Takes the port of the first generation before its rank 0 does."""
  path = run.run_dir / 'aegis' / 'coordinator'
  while not path.exists():
    time.sleep(0.001)
  host, _, port = path.read_text().partition(':')
  run.taken = socket.create_server((host, int(port)))


def _log(line: str) -> Callable[[Any], None]:
  """Writes a line to the kernel's log of node b."""

  def disturb(run: Any) -> None:
    run.await_fault()
    with (run.run_dir / 'b.kern').open('a', encoding='utf-8') as file:
      file.write(f'6,1,1,-;{line}\n')

  return disturb


def _print_ecc(run: Any) -> None:
  """Writes the same to the log of training."""
  run.await_fault()
  with (run.run_dir / 'log.txt').open('a', encoding='utf-8') as file:
    file.write(f'\n{_ECC}\n6,1,1,-;{_ECC}\n')


_ECC = (
  'amdgpu 0000:05:00.0: amdgpu: 1 new uncorrectable hardware errors detected '
  'in umc block'
)
_KERNEL = (*_SPARE, '--aegis.logs=kern:{run_dir}/{{node}}.kern')

DRILLS = {
  'kill_rank': Drill(
    about='SIGKILL to a rank in a step',
    faults='kill@step:23:1:1',
    check=_seen('exit', node='b', rank=1),
  ),
  'kill_coordinator': Drill(
    about='SIGKILL to rank 0 in a step',
    faults='kill@step:23:0:1',
    check=_seen('exit', node='a', rank=0),
  ),
  'segv_rank': Drill(
    about='a rank crashes in C++',
    faults='segv@step:23:1:1',
    check=_seen('exit', node='b', rank=1),
  ),
  'abort_rank': Drill(about='a rank aborts in C++', faults='abort@step:23:1:1'),
  'raise_rank': Drill(
    about='an exception on one rank',
    faults='raise@step:23:1:1',
    check=_seen('exit', node='b', rank=1),
  ),
  'raise_coordinator': Drill(
    about='an exception on rank 0',
    faults='raise@step:23:0:1',
    check=_seen('exit', node='a', rank=0),
  ),
  'freeze_rank': Drill(
    about='SIGSTOP to a rank',
    faults='freeze@step:23:1:1',
    check=_acted('restart', 'b'),
  ),
  'freeze_coordinator': Drill(
    about='SIGSTOP to rank 0',
    faults='freeze@step:23:0:1',
    check=_acted('restart', 'a'),
  ),
  'hold_lock': Drill(
    about='a rank hangs and holds the lock of its interpreter',
    faults='hold_lock@step:23:1:1',
  ),
  'freeze_loader': Drill(
    about='the loader of a rank hangs',
    faults='hang@data:23:1:1',
    check=_acted('restart', 'b'),
  ),
  'stall_network': Drill(
    about='a rank is away for 5 s, and the limit is 15 s',
    faults='stall@step:23:1:1',
    flags=('--aegis.step_limit_s=15',),
    generations=1,
  ),
  'slow_start': Drill(
    about='a rank takes 8 s longer to start',
    faults='sleep@init:0:1:1',
    generations=1,
  ),
  'kill_node': Drill(
    about='a node and its agent are gone, a spare takes over',
    faults='kill_node@step:23:1:1',
    flags=_SPARE,
    check=_acted('replace_node', 'b'),
  ),
  'freeze_node': Drill(
    about='a node and its agent hang, a spare takes over',
    faults='freeze_node@step:23:1:1',
    flags=_SPARE,
  ),
  'kill_node_no_spare': Drill(
    about='a node is gone and no spare is there; the job is queued again',
    faults='kill_node@step:23:1:1',
    code=exit_codes.STOPPED,
    then_resume=True,
  ),
  'kill_node_shrink': Drill(
    about='a node is gone and the run goes on with one fewer',
    faults='kill_node@step:23:1:1',
    flags=('--aegis.shrink',),
    equal=False,
  ),
  'three_faults': Drill(
    about='SIGKILL, a hang and a crash in one run',
    faults='kill@step:13:1:1,freeze@step:31:0:2,segv@step:44:1:3',
    generations=4,
  ),
  'kill_in_restore': Drill(
    about='SIGKILL, and again while the next generation restores',
    faults='kill@step:23:1:1,kill@restore:0:0:2',
    generations=3,
  ),
  'kill_in_save': Drill(
    about='SIGKILL to all ranks while a checkpoint is being written',
    faults='kill@step:21:0:1,kill@step:21:1:1',
  ),
  'kill_at_save': Drill(
    about='SIGKILL to a rank that the others wait for in a save',
    faults='kill@save:20:1:1',
  ),
  'nan_step': Drill(
    about='NaN in one step: it is left out whole',
    faults='nan@data:23:0:1,nan@data:23:1:1',
    generations=1,
    equal=False,
    check=_seen('refused_step', step=23),
  ),
  'always_raise': Drill(
    about='the same exception each time: no progress',
    faults='raise@step:7:1:*',
    generations=3,
    code=exit_codes.NO_PROGRESS,
    finishes=False,
  ),
  'port_clash': Drill(
    about='the port of the coordinator is taken',
    disturb=_occupy_port,
  ),
  'two_supervisors': Drill(
    about='a second supervisor of the same run directory',
    faults='mark@step:13:0:1',
    generations=1,
    disturb=_second_supervisor,
    check=lambda run: list(map(str, run.run_dir.glob('second_was_let_in*'))),
  ),
  'zombie_save': Drill(
    about='ranks outlive their node and try to save',
    faults='escape@save:20:0:1,escape@save:20:1:1',
    flags=('--aegis.nodes=a,b', '--aegis.spares=1', '--aegis.ranks_per_node=2'),
    check=_says('was given up and generation 2 goes on in its place'),
  ),
  'ecc_line': Drill(
    about='the kernel of a node tells of an uncorrectable error in memory',
    faults='mark@step:23:1:1',
    flags=_KERNEL,
    disturb=_log(_ECC),
    check=_seen('gpu_memory_uncorrectable', node='b'),
  ),
  'ecc_all_clear': Drill(
    about='the kernel of a node tells that there is no such error',
    faults='mark@step:23:1:1',
    flags=_KERNEL,
    disturb=_log(_ECC.replace('1 new', 'no')),
    generations=1,
  ),
  'ecc_printed': Drill(
    about='training prints what a kernel would',
    faults='mark@step:23:1:1',
    flags=_KERNEL,
    disturb=_print_ecc,
    generations=1,
  ),
  'sigterm': Drill(
    about='SIGTERM to the supervisor; the same command goes on',
    faults='mark@step:23:0:1',
    disturb=_send(signal.SIGTERM),
    code=exit_codes.STOPPED,
    then_resume=True,
    check=_seen('drained'),
  ),
  'sigint': Drill(
    about='Ctrl-C; the same command goes on',
    faults='mark@step:23:0:1',
    disturb=_send(signal.SIGINT),
    code=exit_codes.STOPPED,
    then_resume=True,
  ),
  'double_sigterm': Drill(
    about='a second SIGTERM while a rank hangs',
    faults='freeze@step:23:1:1',
    disturb=_send(signal.SIGTERM, signal.SIGTERM),
    code=exit_codes.STOPPED,
    then_resume=True,
  ),
  'kill_supervisor': Drill(
    about='SIGKILL to the supervisor: its ranks end with it',
    faults='mark@step:23:0:1',
    disturb=_send(signal.SIGKILL),
    code=-9,
    then_resume=True,
  ),
}
