# SPDX-License-Identifier: Apache-2.0
"""A training process of an agent: it has a place or waits for one."""

import contextlib
import os
import subprocess
import sys
from typing import Any

from zaya_jax.aegis.agent import starvation
from zaya_jax.runtime import beats, supervised

_SUSPECT_S = 1.0  # Without progress, after which starvation is measured.
_WHY = 500  # Characters of the reason for which it failed.


class Process:
  """Starts the command of a rank, which waits for its place."""

  def __init__(self, command: list[str]):
    self.rank = -1  # None yet.
    self.slot = beats.Slot()
    self._looks = self._late = 0
    self.popen = subprocess.Popen(
      command,
      stdin=subprocess.PIPE,
      stdout=sys.stderr,  # Standard output belongs to the protocol.
      env={**os.environ, supervised.STANDBY: f'{self.slot.file} {os.getpid()}'},
      pass_fds=(self.slot.file,),
      start_new_session=True,
    )
    self.watch = os.pidfd_open(self.popen.pid)  # Readable once it has ended.
    self._starvation = starvation.Starvation(self.popen.pid)
    self._starved = False

  @property
  def exit_code(self) -> int | None:
    """None while it runs; negative: a signal.

    The kernel keeps its number until `wait`, so that `signal` still reaches
    its children and nobody else.
    """
    if self.popen.returncode is not None:
      return self.popen.returncode
    options = os.WEXITED | os.WNOHANG | os.WNOWAIT
    found = os.waitid(os.P_PID, self.popen.pid, options)
    if found is None:
      return None
    return found.si_status * (1 if found.si_code == os.CLD_EXITED else -1)

  def begin(self, place: supervised.Place) -> None:
    """Gives it its place."""
    self.rank = place.rank
    self.slot.enter('import')
    with contextlib.suppress(BrokenPipeError):  # Its exit code will show why.
      self.popen.stdin.write(supervised.to_line(place).encode())
      self.popen.stdin.close()

  def signal(self, number: int) -> None:
    """Sends a signal to it and to its children, unless `wait` has seen its end.

    Its number may belong to another process then.
    """
    if self.popen.returncode is None:
      with contextlib.suppress(ProcessLookupError):
        os.killpg(self.popen.pid, number)

  def wait(self, seconds: float) -> bool:
    """Whether it has ended by then; frees what it leaves."""
    try:
      self.popen.wait(seconds)
    except subprocess.TimeoutExpired:
      return False
    os.close(self.watch)
    self.slot.close()
    with contextlib.suppress(BrokenPipeError):
      self.popen.stdin.close()
    return True

  def describe(self) -> dict[str, Any]:
    """How far it is, as `events.Progress` without the node."""
    failure = self.slot.failure
    return {
      'rank': self.rank,
      'pid': self.popen.pid,
      'phase': self.slot.phase,
      'entered': self.slot.entered,
      'done': self.slot.done,
      'process': _letter(self.popen.pid),
      'exit_code': self.exit_code,
      'failed_ns': failure[0] if failure else None,
      'why': failure[1][:_WHY] if failure else '',
      'looks': self._looks,
      'late': self._late,
      'starved': self._starved,
    }

  def look(self) -> None:
    """Samples whether it is in a step or before one, and whether it starves."""
    phase = self.slot.phase
    self._looks += phase in ('data', 'step')
    self._late += phase == 'data'
    self._starved = self._starvation.look(self.slot.age_s > _SUSPECT_S)


def _letter(pid: int) -> str:
  """The state in /proc/PID/stat: T is stopped, D waits for a device."""
  try:
    with open(f'/proc/{pid}/stat', encoding='utf-8') as file:
      return file.read().rpartition(')')[2].split()[0]
  except OSError:
    return ''
