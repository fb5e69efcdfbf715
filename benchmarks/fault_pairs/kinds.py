# SPDX-License-Identifier: Apache-2.0
"""The kinds of faults: each is done to a run at a random time of it.

A function returns the nodes that the fault harms: to replace another one is a
false condemnation.
"""

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

from benchmarks.fault_pairs import processes, rank

_FORGED = (
  b'4,1,2,-;amdgpu 1: gpu_reset[77]: segfault at 0 ip 0 sp 0 error 4\n'
  b'12,1,2,-;amdgpu 0000:05:00.0: amdgpu: 1 new uncorrectable hardware errors '
  b'detected in umc block\n'
  b'6,1,2,-;amdgpu 0000:05:00.0: amdgpu: no uncorrectable hardware errors '
  b'detected in umc block\n'
)
_WARNINGS = b'WARNING Step 7 is not saved: No space left on device\n' * 5

Kind = Callable[[Any, random.Random], set[str]]


def kill_rank(run: Any, dice: random.Random) -> set[str]:
  """A rank is killed. Twice on one node within a day is the node's fault."""
  return _one(run, dice, 'rank', signal.SIGKILL)


def freeze(run: Any, dice: random.Random) -> set[str]:
  """A rank stops for ever."""
  return _one(run, dice, 'rank', signal.SIGSTOP)


def kill_agent(run: Any, dice: random.Random) -> set[str]:
  """The agent of a node ends, and its ranks with it."""
  nodes = run.training()
  return _agents(run, [dice.choice(nodes)] if nodes else [])


def kill_spare(run: Any, dice: random.Random) -> set[str]:
  """The agent of a spare ends."""
  spares = sorted(set(run.nodes) - set(run.training()))
  return _agents(run, [dice.choice(spares)] if spares else [])


def pause_supervisor(run: Any, dice: random.Random) -> set[str]:
  """The supervisor gets no processor for seconds, maybe beyond its lease."""
  return _pause(run, 'supervisor', dice.uniform(0.5, 6.0))


def lose_store(run: Any, dice: random.Random) -> set[str]:
  """The lease store does not answer for seconds, maybe beyond the lease."""
  run.store.stall(dice.uniform(0.5, 6.0))
  return set()


def fill_disk(run: Any, dice: random.Random) -> set[str]:
  """The disk of the run directory is full for seconds."""
  filler = run.run_dir / 'filler'
  with contextlib.suppress(OSError), filler.open('wb', buffering=0) as file:
    while True:
      file.write(bytes(4096))
  _later(dice.uniform(0.5, 4.0), lambda: filler.unlink(missing_ok=True))
  return set()


def cut_link(run: Any, dice: random.Random) -> set[str]:
  """Nothing passes between supervisor and a node, for seconds or for good."""
  node = dice.choice(run.nodes)
  cut = run.folder / f'{node}.cut'
  cut.touch()
  if dice.random() < 0.5:
    _later(dice.uniform(0.3, 3.0), lambda: cut.unlink(missing_ok=True))
  return {node}


def jump_clock(run: Any, dice: random.Random) -> set[str]:
  """The calendar of all processes jumps by hours, as after a time server."""
  hours = dice.choice((-30, -1, 1, 30))
  run.clock.write_text(str(3600 * hours))
  return set()


def start_slowly(run: Any, dice: random.Random) -> set[str]:
  """Ranks that begin from now on need seconds, as when storage is slow."""
  (run.folder / rank.SLOW).write_text(str(dice.uniform(1.0, 4.0)))
  return set()


def log_garbage(run: Any, dice: random.Random) -> set[str]:
  """Junk and forged lines in the kernel's log, the trainer's and a link."""
  junk = dice.randbytes(100_000) + b'\n' + _FORGED + bytes(1 << 20) + b'\n'
  for path, text in ((run.kernel, junk), (run.run_dir / 'log.txt', _WARNINGS)):
    with contextlib.suppress(OSError), path.open('ab') as file:
      file.write(text)
  banner = b'Welcome!\n{"kind": \xff\n[]\n{"kind": "seen"}\n'
  (run.folder / f'{dice.choice(run.nodes)}.garbage').write_bytes(banner)
  return set()


def preempt(run: Any, dice: random.Random) -> set[str]:
  """The scheduler asks the supervisor to end."""
  del dice
  for process in run.processes('supervisor'):
    process.signal(signal.SIGTERM)
  return set()


KINDS: dict[str, Kind] = {
  f.__name__: f
  for f in (
    kill_rank,
    freeze,
    kill_agent,
    kill_spare,
    pause_supervisor,
    lose_store,
    fill_disk,
    cut_link,
    jump_clock,
    start_slowly,
    log_garbage,
    preempt,
  )
}
# Both of a pair on one node are two strikes against it.
STRIKES = ('kill_rank', 'freeze')


def _one(run: Any, dice: random.Random, role: str, number: int) -> set[str]:
  there = run.processes(role)
  if not there:
    return set()
  victim = dice.choice(there)
  victim.signal(number)
  return {victim.node}


def _agents(run: Any, nodes: list[str]) -> set[str]:
  for process in run.processes('agent'):
    if process.node in nodes:
      process.signal(signal.SIGKILL)
  return set(nodes)


def _pause(run: Any, role: str, seconds: float) -> set[str]:
  there: list[processes.Process] = run.processes(role)
  for process in there:
    process.signal(signal.SIGSTOP)
  for process in there:
    _later(seconds, lambda pid=process.pid: _go_on(pid))
  return set()


def _go_on(pid: int) -> None:
  with contextlib.suppress(ProcessLookupError):
    os.kill(pid, signal.SIGCONT)


def _later(seconds: float, call: Callable[[], object]) -> None:
  """Calls it in so many seconds, in a thread that nobody waits for."""

  def wait() -> None:
    time.sleep(seconds)
    call()

  threading.Thread(target=wait, daemon=True).start()
