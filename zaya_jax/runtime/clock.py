# SPDX-License-Identifier: Apache-2.0
"""When the process began, for the seconds that users wait.

The package imports this first, so that the seconds count what comes before
the first step too: imports, preparing data, compiling.
"""

import time

START = time.monotonic()


def elapsed() -> float:
  """Seconds since the package was first imported."""
  return time.monotonic() - START


def stamps() -> dict[str, float]:
  """What rows of metrics say of the time."""
  return {'time/elapsed_s': elapsed(), 'time/unix_s': time.time()}
