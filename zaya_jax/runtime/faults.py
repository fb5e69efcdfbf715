# SPDX-License-Identifier: Apache-2.0
"""Faults that a drill asks a rank to have, at a step of a generation.

Written as KIND@PHASE:STEP:RANK:GENERATION with commas between; `*` is any.
"""

import contextlib
import ctypes
import json
import os
import pathlib
import signal
import subprocess
import time
from collections.abc import Callable

from zaya_jax.runtime import fence

VARIABLE = 'ZAYA_JAX_FAULTS'  # Of the supervisor: what its ranks are to have.
_STALL_S = 5.0  # As long as a network may be away.


def parse(
  text: str, rank: int, generation: int, log: pathlib.Path
) -> Callable[[str, int], None]:
  """Reads the faults of one rank.

  Args:
    text: as above.
    rank: of this process.
    generation: of this process.
    log: gets a line of JSON about each fault, before it.

  Returns:
    What to call with each phase and step.
  """
  wanted: list[tuple[str, str, int | None]] = []
  for entry in text.split(','):
    kind, _, where = entry.partition('@')
    phase, *numbers = where.split(':')
    step, *its = (None if n == '*' else int(n) for n in numbers)
    if its[0] in (None, rank) and its[1] in (None, generation):
      wanted.append((kind, phase, step))

  def enter(phase: str, step: int) -> None:
    for fault in wanted:
      kind, its_phase, its_step = fault
      if phase == its_phase and its_step in (None, step):
        wanted.remove(fault)
        row = {'time': time.time(), 'fault': kind, 'step': step, 'rank': rank}
        row |= {'generation': generation, 'pid': os.getpid()}
        with log.open('a', encoding='utf-8') as file:
          file.write(json.dumps(row) + '\n')
        KINDS[kind]()
        if kind == 'escape':
          _await_generation(generation, log.with_name('generation'))
        return

  return enter


def _send(number: int) -> Callable[[], None]:
  return lambda: os.kill(os.getpid(), number)


def _raise() -> None:
  raise RuntimeError('this is a drill')


def _stall() -> None:
  """Stops this process for a while, as a network that is away does."""
  subprocess.Popen(['sh', '-c', f'sleep {_STALL_S}; kill -CONT {os.getpid()}'])
  os.kill(os.getpid(), signal.SIGSTOP)


def _hold_lock() -> None:
  """Hangs without ever letting another thread run."""
  ctypes.PyDLL(None).sleep(10**6)


def _kill_node() -> None:
  os.kill(os.getppid(), signal.SIGKILL)
  time.sleep(10)  # The kernel ends this process.


def _freeze_node() -> None:
  os.kill(os.getppid(), signal.SIGSTOP)
  os.kill(os.getpid(), signal.SIGSTOP)


def _escape() -> None:
  """Outlives its node, as where the network between them is cut."""
  set_death_signal, none = 1, 0
  ctypes.CDLL(None).prctl(set_death_signal, none)
  agent = os.getppid()
  time.sleep(1)  # All ranks of the node do so first.
  with contextlib.suppress(ProcessLookupError):
    os.kill(agent, signal.SIGKILL)


def _await_generation(old: int, newest: pathlib.Path) -> None:
  """Waits until a newer one has begun."""
  until = time.monotonic() + 60
  run_dir = str(newest.parent.parent)
  while fence.newest(run_dir) <= old and time.monotonic() < until:
    time.sleep(0.01)


def _poison() -> None:
  """Puts NaN into the next batch, where its targets count."""
  from zaya_jax.parallel import batch as batch_lib

  put = batch_lib.put_batch

  def once(mesh, batch):
    batch_lib.put_batch = put
    weights = batch['weights'].copy()
    weights[weights != 0] = float('nan')
    return put(mesh, {**batch, 'weights': weights})

  batch_lib.put_batch = once


KINDS: dict[str, Callable[[], None]] = {
  'mark': lambda: None,
  'kill': _send(signal.SIGKILL),
  'segv': _send(signal.SIGSEGV),
  'abort': _send(signal.SIGABRT),
  'freeze': _send(signal.SIGSTOP),
  'raise': _raise,
  'stall': _stall,
  'hold_lock': _hold_lock,
  'sleep': lambda: time.sleep(8),
  'hang': lambda: time.sleep(10**6),
  'kill_node': _kill_node,
  'freeze_node': _freeze_node,
  'escape': _escape,
  'nan': _poison,
}
