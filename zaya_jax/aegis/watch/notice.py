# SPDX-License-Identifier: Apache-2.0
"""Notices that the machines will be taken away: a file, or a signal.

What announces it (a daemon of a cloud, an epilog, `#SBATCH --signal`) leaves
minutes at best, so each becomes a save and an end with exit code 75.
"""

import pathlib
import signal
from typing import Literal

from zaya_jax.aegis.decide import events

# SIGUSR1 announces; the others ask, and the second of them insists.
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
_SHOWN = 200  # Characters of the file.


class File:
  """Looks for a file that is made, or written anew.

  One that was there before says nothing: it is of a run that was taken away
  earlier, and would end each run after it.

  Args:
    path: '' for none.
  """

  def __init__(self, path: str):
    self._path = pathlib.Path(path) if path else None
    self._before = self._mark()
    self._is_told = False

  def poll(self, time_s: float) -> list[events.Event]:
    """`stop_requested`, once."""
    mark = self._mark()
    if self._is_told or mark is None or mark == self._before:
      return []
    self._is_told = True
    return [
      events.Event(
        time_s=time_s,
        kind='stop_requested',
        detail=f'the notice {self._path}{self._words()}',
      )
    ]

  def _mark(self) -> tuple[int, int] | None:
    """Changes when the file is made or written; None: there is none."""
    try:
      found = self._path.stat() if self._path else None
    except OSError:
      return None
    return (found.st_ino, found.st_mtime_ns) if found else None

  def _words(self) -> str:
    """What it says, in one line."""
    try:
      with self._path.open('rb') as file:
        text = file.read(_SHOWN).decode(errors='replace').strip()
    except OSError:
      return ''
    return f': {text.encode("unicode_escape").decode()}' if text else ''


class Requests:
  """Weighs signals, of which schedulers send several for one end."""

  def __init__(self):
    self._asked = 0

  def weigh(
    self, number: int, *, is_ending: bool
  ) -> Literal['stop', 'wait', 'now']:
    """What a signal means: save and end, go on ending, or end at once.

    A signal that follows a notice does not insist: Slurm sends SIGUSR1, as the
    job has asked, and SIGTERM later.

    Args:
      number: one of SIGNALS.
      is_ending: whether ranks were asked to save and end.
    """
    self._asked += number != signal.SIGUSR1
    if self._asked > 1 and number != signal.SIGUSR1:
      return 'now'
    return 'wait' if is_ending else 'stop'
