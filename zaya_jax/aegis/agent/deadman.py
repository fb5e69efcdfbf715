# SPDX-License-Identifier: Apache-2.0
"""Ends the ranks of a node whose supervisor no longer answers.

The network may be cut in a way that closes no pipe. So each answer of the
supervisor is good for some time, and when the last one is used up, another
supervisor, or this one, may start the next generation elsewhere.
"""

import collections
import os
import sys
import threading
import time
from collections.abc import Callable

from zaya_jax.config import exit_codes

_REMEMBERED = 1000  # Reports without an answer.


class DeadMan:
  """A thread of its own, as the agent itself may wait for a file.

  Args:
    kill: ends the ranks.
  """

  def __init__(self, kill: Callable[[], None]):
    self._kill = kill
    self._sent: collections.deque[tuple[int, float]] = collections.deque(
      maxlen=_REMEMBERED
    )
    self._until: float | None = None  # None: no answer has had a limit yet.

  def sending(self, number: int) -> None:
    """Notes when a report was sent."""
    self._sent.append((number, time.monotonic()))

  def answered(self, number: int, for_s: float) -> None:
    """Takes the answer to a report: it holds from when that was sent."""
    while self._sent and self._sent[0][0] < number:
      self._sent.popleft()
    if not self._sent or self._sent[0][0] != number:
      return
    first = self._until is None
    self._until = self._sent[0][1] + for_s
    if first:
      threading.Thread(target=self._run, daemon=True).start()

  def _run(self) -> None:
    while (left := self._until - time.monotonic()) > 0:
      time.sleep(left)
    self._kill()
    print('zaya_jax: the supervisor is silent; its ranks end', file=sys.stderr)
    os._exit(exit_codes.STOPPED)
