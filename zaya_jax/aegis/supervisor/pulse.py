# SPDX-License-Identifier: Apache-2.0
"""Whether the supervisor itself runs: its pauses, and its word to systemd."""

import contextlib
import os
import socket
import time

_AWAY_S = 1.0  # Between two turns, which are ten a second.
_NOTIFY_S = 5.0


class Pulse:
  """The monotonic clock of the loop."""

  def __init__(self):
    self._last = time.monotonic()
    self._notified = -_NOTIFY_S

  def beat(self) -> float:
    """Seconds without a turn before this one; 0 if there was no pause."""
    now = time.monotonic()
    away, self._last = now - self._last, now
    return away if away > _AWAY_S else 0.0

  def tell(self) -> None:
    """Tells systemd, if it has asked for it, that there is progress."""
    if self._last < self._notified + _NOTIFY_S:
      return
    self._notified = self._last
    address = os.environ.get('NOTIFY_SOCKET', '').replace('@', '\0', 1)
    if address:
      with (
        contextlib.suppress(OSError),
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as there,
      ):
        there.setblocking(False)
        there.sendto(b'WATCHDOG=1', address)
