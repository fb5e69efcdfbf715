# SPDX-License-Identifier: Apache-2.0
"""Whether a process makes no progress because it gets no processor time."""

import glob
import time

_WINDOW_S = 0.5  # Of a measurement, at least.
_SHARE = 0.5  # Of the window, that its threads were ready but did not run.


class Starvation:
  """Measures one process as often as it is looked at."""

  def __init__(self, pid: int):
    self._pid = pid
    self._before: tuple[float, float] | None = None
    self._found = False

  def look(self, is_suspect: bool = True) -> bool:
    """Whether it was starved in the last whole window.

    Args:
      is_suspect: False if it makes progress, so that nothing is measured.
    """
    now = time.monotonic()
    if not is_suspect:
      self._before, self._found = None, False
    elif self._before is None:
      self._before = now, waited_s(self._pid)
    elif now > self._before[0] + _WINDOW_S:
      before, self._before = self._before, (now, waited_s(self._pid))
      waited = self._before[1] - before[1]
      self._found = waited > _SHARE * (now - before[0])
    return self._found


def waited_s(pid: int) -> float:
  """Seconds that the threads of a process were ready but did not run."""
  total = 0
  for path in glob.glob(f'/proc/{pid}/task/*/schedstat'):
    try:
      with open(path, encoding='ascii') as file:
        total += int(file.read().split()[1])
    except (OSError, IndexError):  # The thread has ended.
      continue
  return total / 1e9
