# SPDX-License-Identifier: Apache-2.0
"""Which sizes to measure, and from which one on the rate is that of large ones.

First a ladder of powers of four, its ends before its middle: a search that runs
out of time knows the latency, the best rate and roughly the way between. Then
the bracket around the knee is halved until its ends differ by FINEST.
"""

import math
from collections.abc import Iterator, Mapping

SHARE = 0.9  # Of the rate of large sizes: saturated.
FINEST = 1.1  # The saturating size over the largest one that is too small.
STEP = 4


def ladder(smallest: int, largest: int) -> list[int]:
  """Powers of STEP times `smallest`, and `largest`."""
  sizes = [smallest]
  while sizes[-1] * STEP < largest:
    sizes.append(sizes[-1] * STEP)
  return [*sizes, largest] if largest > smallest else sizes


def ends_first(sizes: list[int]) -> Iterator[int]:
  """The first, the last, the middle, the middles of the halves, and so on."""
  if not sizes:
    return
  yield sizes[0]
  if len(sizes) > 1:
    yield sizes[-1]
  gaps = [(0, len(sizes) - 1)]
  while gaps:
    low, high = gaps.pop(0)
    if high - low > 1:
      middle = (low + high) // 2
      yield sizes[middle]
      gaps += [(low, middle), (middle, high)]


def limit(rates: Mapping[int, float], cached: bool = False) -> float:
  """The rate of large sizes.

  Args:
    rates: by size.
    cached: whether small sizes may be faster, because they fit into a cache;
      then the limit is the rate of the largest size, else the best one.
  """
  return rates[max(rates)] if cached else max(rates.values())


def saturated(rates: Mapping[int, float], cached: bool = False) -> int:
  """The smallest measured size with SHARE of the limit."""
  enough = SHARE * limit(rates, cached)
  return min(size for size, rate in rates.items() if rate >= enough)


def next_size(rates: Mapping[int, float], cached: bool = False) -> int | None:
  """The size to measure next.

  Args:
    rates: by size, as measured so far.
    cached: as for `limit`.

  Returns:
    The geometric mean of the knee's bracket; None when that is narrow enough,
    or already the smallest size saturates.
  """
  above = saturated(rates, cached)
  smaller = [size for size in rates if size < above]
  if not smaller or above <= FINEST * max(smaller):
    return None
  return round(math.sqrt(above * max(smaller)))
