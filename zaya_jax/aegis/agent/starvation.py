# SPDX-License-Identifier: Apache-2.0
"""Whether a process makes no progress because it gets no processor."""

import glob
import time

_WINDOW_S = 0.5  # That a measurement takes at least.
_SHARE = 0.5  # Of it, that all threads together were ready and did not run.


class Starvation:
  """Measures one process while somebody looks again and again.

  Args:
    pid: of the process.
  """

  def __init__(self, pid: int):
    self._pid = pid
    self._before: tuple[float, float] | None = None
    self._found = False

  def reset(self) -> None:
    """It makes progress: no need to measure."""
    self._before, self._found = None, False

  def look(self) -> bool:
    """Whether it was starved in the last whole window."""
    now = time.monotonic()
    if self._before is None:
      self._before = now, waited_s(self._pid)
    elif now > self._before[0] + _WINDOW_S:
      before, self._before = self._before, (now, waited_s(self._pid))
      waited = self._before[1] - before[1]
      self._found = waited > _SHARE * (now - before[0])
    return self._found


def waited_s(pid: int) -> float:
  """Seconds that the threads of a process were ready to run and did not."""
  total = 0
  for path in glob.glob(f'/proc/{pid}/task/*/schedstat'):
    try:
      with open(path, encoding='ascii') as file:
        total += int(file.read().split()[1])
    except (OSError, IndexError):  # The thread has ended, or is not counted.
      continue
  return total / 1e9
