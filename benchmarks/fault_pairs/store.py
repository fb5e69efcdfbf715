# SPDX-License-Identifier: Apache-2.0
"""A path to an etcd that can be stalled: nothing passes, nothing is closed."""

import contextlib
import socket
import threading
import time

_SIZE = 65536


class Store:
  """Forwards a port of its own to that of etcd.

  Args:
    target: the port of etcd on this machine.

  Attributes:
    port: that it listens on.
  """

  def __init__(self, target: int):
    self._target, self._until = target, 0.0
    self._server = socket.create_server(('127.0.0.1', 0))
    self.port = self._server.getsockname()[1]
    threading.Thread(target=self._accept, daemon=True).start()

  def stall(self, seconds: float) -> None:
    """Passes nothing for so long."""
    self._until = time.monotonic() + seconds

  def close(self) -> None:
    """Listens no more."""
    self._server.close()

  def _accept(self) -> None:
    with contextlib.suppress(OSError):
      while True:
        near, _ = self._server.accept()
        far = socket.create_connection(('127.0.0.1', self._target))
        for pair in ((near, far), (far, near)):
          threading.Thread(target=self._copy, args=pair, daemon=True).start()

  def _copy(self, source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
      while data := source.recv(_SIZE):
        while (left := self._until - time.monotonic()) > 0:
          time.sleep(left)
        target.sendall(data)
      target.shutdown(socket.SHUT_WR)
