# SPDX-License-Identifier: Apache-2.0
"""A measurement as all parts record it, and a curve of them."""

import bisect
import dataclasses
import math
from collections.abc import Iterable


@dataclasses.dataclass(frozen=True, kw_only=True)
class Point:
  """One measurement.

  Attributes:
    case: what was done: 'all-reduce', 'triad', '4096x2048x8192'.
    devices: that did it together; threads, of storage.
    size: bytes of the message, the array or the block; FLOPs of a product.
    work: bytes or FLOPs of a call that count in its rate.
    seconds: of a call, the median.
    low: the first quartile.
    high: the third quartile.
    samples: how often it was timed.
    calls: in each sample.
    about: what the rest does not say: shapes of an operation, or the source of
      what others have measured.
  """

  case: str
  devices: int
  size: int
  work: float
  seconds: float
  low: float
  high: float
  samples: int
  calls: int
  about: str = ''

  @property
  def rate(self) -> float:
    """Work per second: of a collective, the bus bandwidth."""
    return self.work / self.seconds

  @property
  def algorithm_rate(self) -> float:
    """Bytes of the message per second."""
    return self.size / self.seconds


def curve(points: Iterable[Point], case: str, devices: int) -> list[Point]:
  """The points of one case on so many devices, by size."""
  found = [p for p in points if (p.case, p.devices) == (case, devices)]
  return sorted(found, key=lambda p: p.size)


def seconds(curve: list[Point], size: float) -> float:
  """Seconds of a call, between the points that were measured.

  On a straight line in the logarithms of both; below the smallest size its
  latency, above the largest one its rate.

  Args:
    curve: by size, at least one point.
    size: of the message, in bytes.
  """
  first, last = curve[0], curve[-1]
  if size <= first.size:
    return first.seconds
  if size >= last.size:
    return last.seconds * size / last.size
  right = bisect.bisect_left([p.size for p in curve], size)
  a, b = curve[right - 1], curve[right]
  share = math.log(size / a.size) / math.log(b.size / a.size)
  return a.seconds * (b.seconds / a.seconds) ** share
