# SPDX-License-Identifier: Apache-2.0
"""How far a rank is: a page of memory that its agent reads.

The training loop itself writes it, not a thread: its age is the time since the
last progress. Without an agent the functions of this module do nothing.
"""

import mmap
import os
import time
from collections.abc import Callable

PHASES = (
  'import',
  'init',
  'restore',
  'compile',
  'data',
  'step',
  'eval',
  'save',
  'end',
)
# Words of 8 bytes, which the machine writes whole.
(_PHASE, _TIME, _ENTERED, _DONE, _STARTED, _FAILED, _CODE, _LENGTH, _COUNT) = (
  range(9)
)
_RING, _RING_SIZE = 16, 128  # The durations of the last steps, in ns.
_TEXT, _SIZE = 2048, 4096  # Bytes: why the rank failed; the page.
_WARM_UP = 5  # Steps whose duration says nothing about the later ones.


class Slot:
  """The page of one rank.

  Args:
    file: of memory, open in both processes; 0: one that is made.

  Attributes:
    file: its number.
  """

  def __init__(self, file: int = 0):
    self.file = file or os.memfd_create('zaya_jax_beat')
    os.ftruncate(self.file, _SIZE)
    self._page = mmap.mmap(self.file, _SIZE)
    self._words = memoryview(self._page).cast('q')

  def enter(self, phase: str, step: int = 0) -> None:
    """Says what the rank does from now on; for 'step', which it begins."""
    words, now = self._words, time.monotonic_ns()
    if phase == 'step':
      # A duration with an evaluation or a save in it is not one of a step.
      if words[_STARTED]:
        count = words[_COUNT] = words[_COUNT] + 1
        if count > _WARM_UP:
          words[_RING + count % _RING_SIZE] = now - words[_STARTED]
      words[_STARTED], words[_ENTERED] = now, step
    elif phase not in ('data', 'eval'):
      words[_STARTED] = 0
    words[_PHASE] = PHASES.index(phase)
    words[_TIME] = now

  def finish(self, step: int) -> None:
    """Says that the results of `step` are there."""
    self._words[_DONE] = step
    self._words[_TIME] = time.monotonic_ns()

  def fail(self, code: int, why: str) -> None:
    """Says why the rank ends now."""
    text = why.encode(errors='replace')[: _SIZE - _TEXT]
    self._page[_TEXT : _TEXT + len(text)] = text
    self._words[_LENGTH], self._words[_CODE] = len(text), code
    self._words[_FAILED] = time.monotonic_ns()

  def close(self) -> None:
    """Lets go of the memory."""
    self._words.release()
    self._page.close()
    os.close(self.file)

  @property
  def phase(self) -> str:
    """One of PHASES."""
    return PHASES[self._words[_PHASE]]

  @property
  def entered(self) -> int:
    """The last step that was begun."""
    return self._words[_ENTERED]

  @property
  def done(self) -> int:
    """The last step whose results are there."""
    return self._words[_DONE]

  @property
  def age_s(self) -> float:
    """Seconds since the last sign of progress, by the clock of the reader."""
    return (time.monotonic_ns() - self._words[_TIME]) / 1e9

  @property
  def failure(self) -> tuple[int, str] | None:
    """When the rank failed, by the monotonic clock in ns, and why."""
    if not self._words[_FAILED]:
      return None
    text = self._page[_TEXT : _TEXT + self._words[_LENGTH]]
    return self._words[_FAILED], text.decode(errors='replace')

  def step_p99_s(self) -> float | None:
    """The 99th percentile of the last steps; None: too few are known."""
    known = sorted(x for x in self._words[_RING : _RING + _RING_SIZE] if x)
    return known[len(known) * 99 // 100] / 1e9 if known else None


_slot: Slot | None = None
_on_enter: Callable[[str, int], None] | None = None


def join(file: int, on_enter: Callable[[str, int], None] | None = None) -> None:
  """Makes this process write to the slot of an agent.

  Args:
    file: of the slot.
    on_enter: called with each phase and step, as drills ask for.
  """
  global _slot, _on_enter
  _slot, _on_enter = Slot(file), on_enter


def enter(phase: str, step: int = 0) -> None:
  """As `Slot.enter`."""
  if _slot:
    _slot.enter(phase, step)
    if _on_enter:
      _on_enter(phase, step)


def finish(step: int) -> None:
  """As `Slot.finish`."""
  if _slot:
    _slot.finish(step)


def fail(code: int, why: str) -> None:
  """As `Slot.fail`."""
  if _slot:
    _slot.fail(code, why)


def is_watched() -> bool:
  """Whether an agent reads, which ends all ranks when this one ends."""
  return _slot is not None
