# SPDX-License-Identifier: Apache-2.0
"""A tracker on a thread of its own: no server makes training wait."""

import functools
import queue
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from zaya_jax.config import fields
from zaya_jax.metrics import trackers

_OPEN_S = 60.0  # How long a start waits to hear that a setting is wrong.
_CLOSE_S = 15.0  # Less than the notice before a machine is taken away.
_AGAIN_S = 60.0  # Between attempts to reach who was not there.
_MOST = 1000  # Rows that wait; of more the newest are lost.


class Feed:
  """Passes on what it is told, in order.

  Args:
    make: opens the tracker.
    open_s: seconds to wait for it; whoever takes longer is opened meanwhile.

  Raises:
    UsageError: if `make` does, in this time.
  """

  def __init__(
    self, make: Callable[[], trackers.Tracker], open_s: float = _OPEN_S
  ):
    self._make = make
    self._tracker: trackers.Tracker | None = None
    self._waiting: queue.Queue[Any] = queue.Queue(_MOST)
    self._wrong: Exception | None = None  # Since it was last told.
    self._again_at = 0.0
    self._opened = threading.Event()
    self._thread = threading.Thread(target=self._work, daemon=True)
    self._thread.start()
    self._opened.wait(open_s)
    if isinstance(self._wrong, fields.UsageError):
      raise self._wrong

  def scalars(self, values: Mapping[str, float], step: int) -> None:
    """Hands a row on; see `trackers.Tracker`."""
    kept = dict(values)
    self._hand(lambda tracker: tracker.scalars(kept, step))

  def text(self, name: str, words: str, step: int) -> None:
    """Hands a text on."""
    self._hand(lambda tracker: tracker.text(name, words, step))

  def close(self, within_s: float = _CLOSE_S) -> None:
    """Waits until all is handed on, or so long.

    Raises:
      OSError: if something was lost, or may be.
    """
    end = time.monotonic() + within_s
    try:
      self._waiting.put(None, timeout=within_s)
    except queue.Full:
      raise OSError(f'{_MOST} rows wait for it') from self._wrong
    self._thread.join(max(0.0, end - time.monotonic()))
    if self._thread.is_alive():
      raise OSError(f'it did not end within {within_s:g} s')
    self._tell()

  def _hand(self, call: Callable[[trackers.Tracker], None]) -> None:
    """Lets a row wait for the thread.

    Raises:
      OSError: if it is lost, or an older one was.
    """
    try:
      self._waiting.put_nowait(call)
    except queue.Full:
      raise OSError(f'{_MOST} rows wait for it') from self._wrong
    self._tell()

  def _tell(self) -> None:
    """Raises OSError if something was lost since it was last told."""
    wrong, self._wrong = self._wrong, None
    if wrong is not None:
      raise OSError(str(wrong).partition('\n')[0]) from wrong

  def _work(self) -> None:
    """The thread."""
    self._open()
    while (call := self._waiting.get()) is not None:
      if self._tracker is None and time.monotonic() >= self._again_at:
        self._open()
      if self._tracker is not None:
        self._try(functools.partial(call, self._tracker))
    if self._tracker is not None:
      self._try(self._tracker.close)

  def _open(self) -> None:
    def open_():
      self._tracker = self._make()

    self._try(open_)
    self._again_at = time.monotonic() + _AGAIN_S
    self._opened.set()

  def _try(self, call: Callable[[], None]) -> None:
    """Calls what must not end the thread, whatever a server answers."""
    try:
      call()
    except Exception as error:
      self._wrong = error
