# SPDX-License-Identifier: Apache-2.0
"""When the command began, for the seconds that users wait.

Who takes a command starts the clock: the seconds count what comes before the
first step too (imports, preparing data, compiling), and neither what the same
process did before nor the time that it stood by.
"""

import time

BEGAN = time.time()  # This process, or its imports.
_start: float | None = None


def start() -> None:
  """The command begins now."""
  global _start
  _start = time.monotonic()


def elapsed() -> float:
  """Seconds since `start`; where nobody has called it, since the first look."""
  if _start is None:
    start()
  assert _start is not None
  return time.monotonic() - _start


def stamps() -> dict[str, float]:
  """What rows of metrics say of the time."""
  return {'time/elapsed_s': elapsed(), 'time/unix_s': time.time()}
