# SPDX-License-Identifier: Apache-2.0
"""Starts a command as ssh does: near end here, far end on "another machine".

    python -m tests.support.fake_relay COMMAND

A near end that is stopped or killed is a network that is cut: no end of file
arrives at the far end, and what it writes is read by nobody.
"""

import os
import subprocess
import sys
import threading


def _copy(source: int, target: int) -> None:
  while data := os.read(source, 65_536):
    while data:
      data = data[os.write(target, data) :]


def _far(down: int, up: int) -> None:
  """Runs the command; its input never ends."""
  process = subprocess.Popen(
    sys.argv[1:], stdin=subprocess.PIPE, stdout=subprocess.PIPE
  )

  def feed() -> None:
    _copy(down, process.stdin.fileno())
    threading.Event().wait()

  threading.Thread(target=feed, daemon=True).start()
  try:
    _copy(process.stdout.fileno(), up)
  except BrokenPipeError:
    while os.read(process.stdout.fileno(), 65_536):
      pass


def main() -> None:
  """Becomes the near end."""
  down, up = os.pipe(), os.pipe()
  if os.fork() == 0:
    os.setsid()
    os.close(down[1])
    os.close(up[0])
    null = os.open(os.devnull, os.O_RDWR)
    for file in (0, 1):
      os.dup2(null, file)
    _far(down[0], up[1])
    os._exit(0)
  os.close(down[0])
  os.close(up[1])
  threading.Thread(target=_copy, args=(0, down[1]), daemon=True).start()
  _copy(up[0], 1)


if __name__ == '__main__':
  main()
