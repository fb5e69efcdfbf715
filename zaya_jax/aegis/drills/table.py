# SPDX-License-Identifier: Apache-2.0
"""The drills: each with its fault, and what must follow."""

import dataclasses
import signal
import socket
import time
from collections.abc import Callable
from typing import Any

from zaya_jax.config import exit_codes

_SPARE = ('--aegis.nodes=a,b,c', '--aegis.spares=1')


@dataclasses.dataclass(frozen=True)
class Drill:
  """One drill."""

  about: str = ''  # What happens, for people.
  faults: str = ''  # As `faults.parse` reads them.
  _: dataclasses.KW_ONLY
  flags: tuple[str, ...] = ()  # Besides those of all drills.
  generations: int = 2  # That there must be.
  code: int = exit_codes.DONE  # Of the supervisor.
  finishes: bool = True  # The last step is reached.
  equal: bool = True  # The result is that of the undisturbed run.
  then_resume: bool = False  # The same command is given again.
  # What else happens during the run, and what is wrong after it.
  disturb: Callable[[Any], None] = lambda run: None
  check: Callable[[Any], list[str]] = lambda run: []


def _seen(kind: str, **facts: Any) -> Callable[[Any], list[str]]:
  """Checks that an incident of a kind has these facts."""

  def check(run: Any) -> list[str]:
    for row in run.incidents(kind):
      if facts.items() <= row.items():
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
      time.sleep(0.5)  # The kernel merges two at once.

  return disturb


def _second_supervisor(run: Any) -> None:
  run.await_fault()
  log = run.run_dir / 'second.log'
  refused = run.command('', log).wait(60) == exit_codes.USAGE
  run.refused = refused and 'is in use by' in log.read_text()


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
_MARK = 'mark@step:23:1:1'  # Does nothing but say that the step has come.


def _ends(about: str, fault: str, rank: int = 1) -> Drill:
  """A rank ends in a step, and the incident names it."""
  check = _seen('exit', node='ab'[rank], rank=rank)
  return Drill(about, f'{fault}@step:23:{rank}:1', check=check)


def _hangs(about: str, fault: str, rank: int = 1) -> Drill:
  """A rank hangs, and the incident names its node."""
  check = _acted('restart', 'ab'[rank])
  return Drill(about, f'{fault}:23:{rank}:1', check=check)


def _stops(
  about: str, *signals: int, faults: str = _MARK, **more: Any
) -> Drill:
  """Signals end the supervisor; the same command goes on."""
  disturb, code = _send(*signals), more.pop('code', exit_codes.STOPPED)
  return Drill(
    about, faults, disturb=disturb, code=code, then_resume=True, **more
  )


DRILLS = {
  'kill_rank': _ends('SIGKILL to a rank in a step', 'kill'),
  'kill_coordinator': _ends('SIGKILL to rank 0 in a step', 'kill', 0),
  'segv_rank': _ends('a rank crashes in C++', 'segv'),
  'abort_rank': Drill('a rank aborts in C++', 'abort@step:23:1:1'),
  'raise_rank': _ends('an exception on one rank', 'raise'),
  'raise_coordinator': _ends('an exception on rank 0', 'raise', 0),
  'freeze_rank': _hangs('SIGSTOP to a rank', 'freeze@step'),
  'freeze_coordinator': _hangs('SIGSTOP to rank 0', 'freeze@step', 0),
  'hold_lock': Drill(
    'a rank hangs and holds the lock of its interpreter',
    'hold_lock@step:23:1:1',
  ),
  'freeze_loader': _hangs('the loader of a rank hangs', 'hang@data'),
  'stall_network': Drill(
    'a rank is away for 5 s, and the limit is 15 s',
    'stall@step:23:1:1',
    flags=('--aegis.step_limit_s=15',),
    generations=1,
  ),
  'slow_start': Drill(
    'a rank takes 8 s longer to start', 'sleep@init:0:1:1', generations=1
  ),
  'kill_node': Drill(
    'a node and its agent are gone, a spare takes over',
    'kill_node@step:23:1:1',
    flags=_SPARE,
    check=_acted('replace_node', 'b'),
  ),
  'freeze_node': Drill(
    'a node and its agent hang, a spare takes over',
    'freeze_node@step:23:1:1',
    flags=_SPARE,
  ),
  'kill_node_no_spare': Drill(
    'a node is gone and no spare is there; the job is queued again',
    'kill_node@step:23:1:1',
    code=exit_codes.STOPPED,
    then_resume=True,
  ),
  'kill_node_shrink': Drill(
    'a node is gone and the run goes on with one fewer',
    'kill_node@step:23:1:1',
    flags=('--aegis.shrink',),
    equal=False,
  ),
  'three_faults': Drill(
    'SIGKILL, a hang and a crash in one run',
    'kill@step:13:1:1,freeze@step:31:0:2,segv@step:44:1:3',
    generations=4,
  ),
  'kill_in_restore': Drill(
    'SIGKILL, and again while the next generation restores',
    'kill@step:23:1:1,kill@restore:0:0:2',
    generations=3,
  ),
  'kill_in_save': Drill(
    'SIGKILL to all ranks while a checkpoint is being written',
    'kill@step:21:0:1,kill@step:21:1:1',
  ),
  'kill_at_save': Drill(
    'SIGKILL to a rank that the others wait for in a save', 'kill@save:20:1:1'
  ),
  'nan_step': Drill(
    'NaN in one step: the step is skipped',
    'nan@data:23:0:1,nan@data:23:1:1',
    generations=1,
    equal=False,
    check=_seen('refused_step', step=23),
  ),
  'always_raise': Drill(
    'the same exception each time: no progress',
    'raise@step:7:1:*',
    generations=3,
    code=exit_codes.NO_PROGRESS,
    finishes=False,
  ),
  'port_clash': Drill(
    'the port of the coordinator is taken', disturb=_occupy_port
  ),
  'two_supervisors': Drill(
    'a second supervisor of the same run directory',
    'mark@step:13:0:1',
    generations=1,
    disturb=_second_supervisor,
    check=lambda run: [] if run.refused else ['a second one was let in'],
  ),
  'zombie_save': Drill(
    'ranks outlive their node and try to save',
    'escape@save:20:0:1,escape@save:20:1:1',
    flags=('--aegis.nodes=a,b', '--aegis.spares=1', '--aegis.ranks_per_node=2'),
    check=_says('was given up and generation 2 goes on in its place'),
  ),
  'ecc_line': Drill(
    'the kernel of a node reports an uncorrectable error in memory',
    _MARK,
    flags=_KERNEL,
    disturb=_log(_ECC),
    check=_seen('gpu_memory_uncorrectable', node='b'),
  ),
  'ecc_all_clear': Drill(
    'the kernel of a node reports that there is no such error',
    _MARK,
    flags=_KERNEL,
    disturb=_log(_ECC.replace('1 new', 'no')),
    generations=1,
  ),
  'ecc_printed': Drill(
    'training prints what a kernel would',
    _MARK,
    flags=_KERNEL,
    disturb=_print_ecc,
    generations=1,
  ),
  'sigterm': _stops(
    'SIGTERM to the supervisor; the same command goes on',
    signal.SIGTERM,
    check=_seen('drained'),
  ),
  'sigint': _stops('Ctrl-C; the same command goes on', signal.SIGINT),
  'double_sigterm': _stops(
    'a second SIGTERM while a rank hangs',
    signal.SIGTERM,
    signal.SIGTERM,
    faults='freeze@step:23:1:1',
  ),
  'kill_supervisor': _stops(
    'SIGKILL to the supervisor: its ranks end with it',
    signal.SIGKILL,
    code=-signal.SIGKILL,
  ),
}
