# SPDX-License-Identifier: Apache-2.0
"""How long one call takes: enough calls in a program, enough programs.

A program makes its call so often that launching it takes at most LAUNCH_SHARE
of its time. How often that is, a first run tells, or neighbours of the point.
"""

import dataclasses
import math
import statistics
import time
from collections.abc import Callable

LAUNCH_SHARE = 0.02
_SHORTEST_S = 5e-3  # A program; clocks and interrupts of the host are small.
_POINT_S = 0.15  # All samples of a point, unless the fewest take longer.
_FEWEST = 3  # Samples, for quartiles.
_MOST_CALLS = 4096
_ATTEMPTS = 3
_ENOUGH = 0.5  # Of the wanted length of a program: not compiled anew.

Now = Callable[[], float]
# Makes a program of so many calls: what runs it and waits for its end.
Make = Callable[[int], Callable[[], None]]
# Of what each process has found, what all go on with.
Agree = Callable[[float], float]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Timed:
  """Seconds of one call.

  Attributes:
    low: the first quartile.
    seconds: the median.
    high: the third quartile.
    samples: programs that were timed.
    calls: in each of them.
  """

  low: float
  seconds: float
  high: float
  samples: int
  calls: int


class Budget:
  """Seconds that may be spent, from now on."""

  def __init__(self, seconds: float, now: Now = time.monotonic):
    self._now, self._end = now, now() + seconds

  def left(self) -> float:
    """Seconds; below 0 when it is spent."""
    return self._end - self._now()


def measure(
  make: Make,
  *,
  repeats: int,
  launch_s: float = 0.0,
  expected_s: float | None = None,
  agree: Agree = lambda mine: mine,
  now: Now = time.perf_counter,
) -> Timed:
  """Times a call in programs that are long enough.

  Args:
    make: compiles a program.
    repeats: the most samples.
    launch_s: seconds of a program without a call.
    expected_s: of a call; None: not known.
    agree: makes all processes choose the same number of calls and samples.
    now: a clock, in seconds.
  """
  wanted_s = max(launch_s / LAUNCH_SHARE, _SHORTEST_S)
  calls = _calls(wanted_s, expected_s) if expected_s else 1
  for attempt in range(_ATTEMPTS):
    run = make(calls)
    run()  # Whatever a first run sets up.
    last = calls == _MOST_CALLS or attempt == _ATTEMPTS - 1
    once = agree(_seconds(run, now))
    if once >= _ENOUGH * wanted_s or last:
      # What interrupts a run once does not change their median.
      timed = _sample(run, calls, once, repeats, now)
      once = agree(timed.seconds * calls)
      if once >= _ENOUGH * wanted_s or last:
        break
    # A single call may be shorter than its launch.
    own = max(once - launch_s, once / 10) / calls
    calls = min(_MOST_CALLS, max(calls + 1, _calls(wanted_s, own)))
  return timed


def _sample(run, calls, once, repeats, now) -> Timed:
  count = min(repeats, max(_FEWEST, int(_POINT_S / max(once, 1e-9))))
  times = [_seconds(run, now) / calls for _ in range(count)]
  low, median, high = quartiles(times)
  return Timed(low=low, seconds=median, high=high, samples=count, calls=calls)


def quartiles(times: list[float]) -> tuple[float, float, float]:
  """The first quartile, the median and the third; of one time three times."""
  if len(times) == 1:
    return times[0], times[0], times[0]
  low, median, high = statistics.quantiles(times, n=4, method='inclusive')
  return low, median, high


def launch(run: Callable[[], None], now: Now = time.perf_counter) -> float:
  """Median seconds of a program that does nothing."""
  run()
  return statistics.median(_seconds(run, now) for _ in range(20))


def _calls(wanted_s, each_s) -> int:
  return min(_MOST_CALLS, max(1, math.ceil(wanted_s / each_s)))


def _seconds(run, now) -> float:
  start = now()
  run()
  return now() - start
