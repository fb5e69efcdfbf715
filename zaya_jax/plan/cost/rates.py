# SPDX-License-Identifier: Apache-2.0
"""What a machine needs for products, memory and operations.

Where a machine file has them, seconds are those that were measured, brought to
the size in question; else those of a formula at measured rates of products and
of the memory; else those of the data sheet (`runtime.chips`).

An operation that was measured at another size has the same share of its
roofline there: the longer of its least FLOPs and bytes, over its seconds.
"""

import dataclasses
import functools
import math
import re
import statistics
from collections.abc import Sequence

from zaya_jax.bench.machine import file
from zaya_jax.bench.sweep import record
from zaya_jax.plan.cost import estimate
from zaya_jax.runtime import chips as chips_lib

_SHAPE = re.compile(r'(\d+)x(\d+)x(\d+) bfloat16$')
_NEAR = 2.0  # Doublings of M, N and K together: nearer rates count.
_NEIGHBORS = 4
_LIKE = 0.3  # Doublings between cases of one size.
_FAR = 0.05  # Error for each doubling from what was measured.
_FORMULA = 0.2  # Error of what an operation is said to compute and to move.
_NOISE = 0.03  # Between machines and days, at least.


@dataclasses.dataclass(frozen=True)
class _Row:
  """An operation as measured: its roofline in seconds, and its share of it."""

  engine: str
  limit: float
  share: float
  worst: float
  best: float


class Rates:
  """The speed of one device.

  Args:
    chip: its data sheet.
    machine: what was measured; None: nothing.
    efficiency: of --plan.efficiency, by which all takes longer.
  """

  def __init__(
    self,
    chip: chips_lib.Chip,
    machine: file.Machine | None = None,
    efficiency: float = 1.0,
  ):
    self.chip, self.machine, self._efficiency = chip, machine, efficiency

  def roofline(self, flops: float, moved: float) -> estimate.Estimate:
    """The longer of FLOPs and bytes: at measured rates, else the data sheet's.

    That an operation does no more than the formula says is not measured.
    """
    both = [self.product(flops), self.moved(moved)]
    longer = max(both, key=lambda found: found.seconds)
    if longer.source == estimate.SHEET:
      return longer
    return dataclasses.replace(longer.wider(_FORMULA), source=estimate.RATES)

  def product(
    self, flops: float, shape: tuple[int, int, int] | None = None
  ) -> estimate.Estimate:
    """FLOPs of products of [M, K] and [K, N].

    At the rate of what was measured near this shape, weighed by distance; else
    at that of typical shapes, with the best rate as the error to one side.
    """
    points = self._points('gemm')
    if not points:
      return self._sheet(flops / self.chip.rate)
    best = max(p.rate for p in points)
    near = (
      sorted(
        (distance, point)
        for point in points
        if (distance := _distance(point.case, shape)) <= _NEAR
      )[:_NEIGHBORS]
      if shape
      else []
    )
    if near:
      weights = [1 / (0.1 + distance) ** 2 for distance, _ in near]
      rates = [point.rate for _, point in near]
      rate = statistics.fmean(rates, weights=weights)
      bar = (max(*rates, rate), min(*rates, rate))
    else:
      named = [p.rate for p in points if p.case.startswith('typical ')]
      rate = (named or [statistics.median(p.rate for p in points)])[0]
      bar = (best, 2 * rate - best)  # As far below as the best is above.
    found = estimate.Estimate(
      seconds=flops / rate,
      low=flops / bar[0],
      high=flops / max(bar[1], rate / 2),
      source=estimate.MEASURED,
    )
    return found.wider(_NOISE) * (1 / self._efficiency)

  def moved(self, bytes_: float) -> estimate.Estimate:
    """Bytes read and written by streaming kernels."""
    points = [p for p in self._points('memory') if p.case in ('triad', 'copy')]
    if not points:
      return self._sheet(bytes_ / self.chip.bandwidth)
    large = max(p.size for p in points)
    rates = [p.rate for p in points if p.size >= large / 4]
    rate = statistics.fmean(rates)
    found = estimate.Estimate(
      seconds=bytes_ / rate,
      low=bytes_ / max(rates),
      high=bytes_ / min(rates),
      source=estimate.MEASURED,
    )
    return found.wider(_NOISE) * (1 / self._efficiency)

  def operation(
    self, name: str, flops: float, moved: float, *,
    calls: float = 1, which: str = 'both', engine: str = '',
  ) -> estimate.Estimate | None:  # fmt: skip
    """`calls` of an operation of `ops`; None: it was not measured.

    Args:
      name: of its folder.
      flops: the least that all calls need, as `ops.case` counts them.
      moved: bytes, likewise.
      calls: of a step.
      which: 'forward', or 'both' with gradients.
      engine: whose rows count; '': those of the fastest.
    """
    rows = [
      row
      for row in self._operations.get((name, which), ())
      if engine in ('', row.engine)
    ]
    if not rows or not calls:
      return None
    limit = self._limit(flops, moved)
    away = lambda row: abs(math.log2(limit / calls / row.limit))
    nearest = min(map(away, rows))
    like = [row for row in rows if away(row) <= nearest + _LIKE]
    fastest = max(like, key=lambda row: row.share).engine
    like = [row for row in like if row.engine == fastest]
    share = statistics.median(row.share for row in like)
    found = estimate.Estimate(
      seconds=limit / share,
      low=limit / max(row.best for row in like),
      high=limit / min(row.worst for row in like),
      source=estimate.MEASURED,
    )
    wide = _NOISE + min(0.5, _FAR * nearest)
    return found.wider(wide) * (1 / self._efficiency)

  def _sheet(self, seconds: float) -> estimate.Estimate:
    return estimate.sheet(seconds) * (1 / self._efficiency)

  @functools.cached_property
  def _operations(self) -> dict[tuple[str, str], list[_Row]]:
    """Rows of each operation, forward and with gradients."""
    found: dict[tuple[str, str], list[_Row]] = {}
    for p in self._points('operations'):
      name, engine, which = p.case.split()[:3]
      limit = self._limit(p.work, p.size)
      found.setdefault((name, which), []).append(
        _Row(engine, limit, limit / p.seconds, limit / p.high, limit / p.low)
      )
    return found

  def _points(self, section: str) -> Sequence[record.Point]:
    known = self.machine.sections.get(section) if self.machine else None
    return known.points if known else ()

  def _limit(self, flops: float, moved: float) -> float:
    return max(flops / self.chip.rate, moved / self.chip.bandwidth)


def _distance(case: str, shape: tuple[int, int, int]) -> float:
  """Doublings between the shapes of two products, over M, N and K."""
  known = _SHAPE.search(case)
  if not known:
    return math.inf
  pairs = zip(map(int, known.groups()), shape, strict=True)
  return math.hypot(*(math.log2(a / b) for a, b in pairs))
