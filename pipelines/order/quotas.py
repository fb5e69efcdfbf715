# SPDX-License-Identifier: Apache-2.0
"""Which source each row of a mixture comes from: exact quotas, well spread."""

import functools
import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

MOST_ROWS = 65_536  # Of a period.


class Quotas:
  """A pattern of rows that repeats.

  In each period a source has exactly its quota of rows; of the first rows, as
  many as there may be, it has its share but for half a row per source.

  Attributes:
    period: rows after which the pattern repeats.
    quotas: rows of each source in a period.
  """

  def __init__(self, weights: Sequence[Fraction]):
    """Makes the pattern.

    Args:
      weights: of the sources, before normalization; 0: the source has no rows.
    """
    self.quotas = _quotas(weights)
    self.period = sum(self.quotas)
    sources = np.repeat(np.arange(len(weights)), self.quotas)
    nth = np.concatenate([np.arange(quota) for quota in self.quotas])
    # Row k of q is due at (k + 1/2) / q. Equal fractions are equal floats, and
    # unequal ones differ in them: the numbers are below 2**17.
    due = (2 * nth + 1) / (2 * np.array(self.quotas)[sources])
    at = np.lexsort((sources, due))
    self._sources, self._nth = sources[at], nth[at]
    self._rows = [
      np.flatnonzero(self._sources == source) for source in range(len(weights))
    ]

  def at(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The source of each row, and how many of its rows come before; int64."""
    periods, within = np.divmod(rows, self.period)
    sources = self._sources[within]
    quotas = np.array(self.quotas)[sources]
    return sources, periods * quotas + self._nth[within]

  def counts(self, rows: int) -> list[int]:
    """Rows of each source among the first `rows`."""
    periods, within = divmod(rows, self.period)
    return [
      periods * quota + int(np.searchsorted(at, within))
      for quota, at in zip(self.quotas, self._rows, strict=True)
    ]


@functools.lru_cache(64)
def of(weights: tuple[Fraction, ...]) -> Quotas:
  """The `Quotas` of these weights, made once."""
  return Quotas(weights)


def _quotas(weights: Sequence[Fraction]) -> tuple[int, ...]:
  """Whole numbers as the weights are, with the smallest sum that is exact.

  A sum above `MOST_ROWS` is brought down to it by largest remainders; what has
  a weight keeps a row.
  """
  if not weights or min(weights) < 0 or not any(weights):
    raise ValueError(f'The weights {list(weights)} are no mixture.')
  shares = [Fraction(weight) / sum(weights) for weight in weights]
  period = math.lcm(*(share.denominator for share in shares))
  if period <= MOST_ROWS:
    return tuple(int(share * period) for share in shares)
  exact = [share * MOST_ROWS for share in shares]
  quotas = [max(math.floor(x), 1) if x else 0 for x in exact]
  left = MOST_ROWS - sum(quotas)
  by_need = sorted(
    range(len(exact)), key=lambda i: (quotas[i] - exact[i], i)
  )  # Who has least of what is due comes first.
  for i in by_need[: max(left, 0)]:
    quotas[i] += 1
  if left < 0:  # Many tiny weights were given a row each.
    quotas[int(np.argmax(quotas))] += left
  return tuple(quotas)
