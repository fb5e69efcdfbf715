# SPDX-License-Identifier: Apache-2.0
"""SIGTERM and Ctrl-C ask a run to stop; the loop decides when."""

import signal
import threading
import types
from typing import Self


class StopSignal:
  """Counts the first SIGTERM or SIGINT; the second one interrupts at once.

  Attributes:
    name: 'SIGTERM' or 'SIGINT' once one has come, else ''.
  """

  def __init__(self):
    self.name = ''
    self._old = {}

  def __bool__(self) -> bool:
    return bool(self.name)

  def __enter__(self) -> Self:
    # Python delivers signals to the main thread only; a run started from
    # another one, as by a notebook server, keeps what is installed there.
    if threading.current_thread() is threading.main_thread():
      for number in (signal.SIGTERM, signal.SIGINT):
        self._old[number] = signal.signal(number, self._receive)
    return self

  def __exit__(self, *unused) -> None:
    for number, handler in self._old.items():
      signal.signal(number, handler)

  def _receive(self, number: int, frame: types.FrameType | None) -> None:
    del frame
    if self.name:
      raise KeyboardInterrupt
    self.name = signal.Signals(number).name
