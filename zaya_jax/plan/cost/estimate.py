# SPDX-License-Identifier: Apache-2.0
"""Seconds with an error bar, and where they come from."""

import dataclasses
import itertools
from collections.abc import Iterable

# An operation or a message as measured; a formula at measured rates; neither.
MEASURED, RATES, SHEET = 'measured', 'measured rates', 'data sheet'
# Of a data sheet's seconds: as far as steps on H100 and H200 were from their
# plans before plans read what was measured (benchmarks/results/planned.json).
SHEET_ERROR = 0.3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Estimate:
  """Seconds that something takes.

  Attributes:
    seconds: that are expected.
    low: at best.
    high: at worst.
    source: MEASURED, RATES or SHEET; several where a sum has several.
  """

  seconds: float
  low: float
  high: float
  source: str

  def __mul__(self, factor: float) -> 'Estimate':
    return dataclasses.replace(
      self,
      seconds=factor * self.seconds,
      low=factor * self.low,
      high=factor * self.high,
    )

  def __add__(self, other: 'Estimate') -> 'Estimate':
    """One after the other; errors are of one clock, and so they add up."""
    words = (e.source.split(' + ') for e in (self, other))
    kinds = dict.fromkeys(itertools.chain(*words))
    return Estimate(
      seconds=self.seconds + other.seconds,
      low=self.low + other.low,
      high=self.high + other.high,
      source=' + '.join(kinds),
    )

  def wider(self, share: float) -> 'Estimate':
    """The same with an error of `share` more to both sides."""
    return dataclasses.replace(
      self, low=self.low * (1 - share), high=self.high * (1 + share)
    )


def sheet(seconds: float) -> Estimate:
  """What a data sheet promises."""
  same = Estimate(seconds=seconds, low=seconds, high=seconds, source=SHEET)
  return same.wider(SHEET_ERROR)


def total(found: Iterable[Estimate]) -> Estimate:
  """The sum of at least one."""
  first, *more = found
  for each in more:
    first += each
  return first
