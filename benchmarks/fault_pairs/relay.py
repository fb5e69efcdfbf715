# SPDX-License-Identifier: Apache-2.0
"""A link to an agent as ssh makes one, which can be cut without a sign.

    python -m benchmarks.fault_pairs.relay FOLDER NODE PROGRAM [ARGUMENT ...]

The far end is a daemon that starts the program. While FOLDER/NODE.cut exists,
what comes is dropped, and neither end learns that the other is gone. The text
of FOLDER/NODE.garbage comes out once, between what the program says.
"""

import contextlib
import os
import pathlib
import select
import socket
import subprocess
import sys
import threading
import time

_SIZE = 65536


class Link:
  """The files that say what the link does to what passes."""

  def __init__(self, folder: str, node: str):
    self.cut = pathlib.Path(folder, f'{node}.cut')
    self.garbage = pathlib.Path(folder, f'{node}.garbage')

  def copy(self, source: int, target: int) -> None:
    """Copies from one file to the other until the source ends."""
    while data := os.read(source, _SIZE):
      if not self.cut.exists():
        _write(target, data)
    while self.cut.exists():  # No end is heard through a cut link.
      time.sleep(0.1)


def main() -> None:
  """Is the near end; the far one is a process of its own."""
  link = Link(*sys.argv[1:3])
  near, far = socket.socketpair()
  if os.fork() == 0:
    near.close()
    os.setsid()
    _far(link, far, sys.argv[3:])
  far.close()
  threading.Thread(target=_up, args=(link, near), daemon=True).start()
  link.copy(sys.stdin.fileno(), near.fileno())
  near.shutdown(socket.SHUT_WR)
  threading.Event().wait(1.0)


def _up(link: Link, near: socket.socket) -> None:
  """Passes on what the agent says; ends with it."""
  output = sys.stdout.fileno()
  while True:
    ready, _, _ = select.select([near], [], [], 0.05)
    if link.garbage.exists():
      _write(output, link.garbage.read_bytes())
      link.garbage.unlink()
    if ready:
      data = b''
      with contextlib.suppress(ConnectionResetError):
        data = near.recv(_SIZE)
      if not data:
        os._exit(0)
      if not link.cut.exists():
        _write(output, data)


def _far(link: Link, far: socket.socket, command: list[str]) -> None:
  """Runs the agent, whose input stays open while the link is cut."""
  nowhere = os.open(os.devnull, os.O_RDWR)
  os.dup2(nowhere, 0)
  os.dup2(nowhere, 1)
  agent = subprocess.Popen(
    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE
  )

  def down() -> None:
    link.copy(far.fileno(), agent.stdin.fileno())
    agent.stdin.close()

  threading.Thread(target=down, daemon=True).start()
  while data := os.read(agent.stdout.fileno(), _SIZE):
    if not link.cut.exists():
      _write(far.fileno(), data)
  os._exit(0)


def _write(file: int, data: bytes) -> None:
  """Writes all, or nothing if nobody listens any more."""
  with contextlib.suppress(OSError):
    while data:
      data = data[os.write(file, data) :]


if __name__ == '__main__':
  main()
