# SPDX-License-Identifier: Apache-2.0
"""What all measurements share: time, limits, progress, and what is known."""

import dataclasses
import math
import sys
from collections.abc import Callable, Iterable

import jax

from zaya_jax.bench.sweep import clock, limit, record, saturation
from zaya_jax.config import exit_codes
from zaya_jax.runtime import processes

_CALLS = 3  # Of a measurement, at least: to warm up, to time, to check.
# (size, expected seconds or None) to the time of a call.
Measure = Callable[[int, float | None], clock.Timed]


class WrongError(RuntimeError):
  """A device or a link that has given wrong values; one sentence."""

  exit_code = exit_codes.INTERNAL


class Frame:
  """One kind of measurement, within its time.

  Args:
    minutes: that it may take; what has begun is ended.
    repeats: the most samples of a point.
    cases: to measure; (): all.
    words: how a measurement is called, of case, size and devices.
    hang_s: seconds after which a measurement hangs.
    known: points of an earlier command that ran out of time.
    keep: is called when points have come.

  Attributes:
    repeats: the most samples of a point.
    limit: of a single measurement.
    points: all that are known.
    notes: what could not be measured, and why.
    missing: what there was no time for.
  """

  def __init__(
    self,
    *,
    minutes: float,
    repeats: int,
    cases: tuple[str, ...] = (),
    words: str = '{case} of {size:,} bytes over {devices} devices',
    hang_s: float = 600.0,
    known: Iterable[record.Point] = (),
    keep: Callable[['Frame'], None] = lambda frame: None,
  ):
    self.repeats, self.limit = repeats, limit.Limit(hang_s)
    self._hang_s = hang_s
    self.points, self._keep = list(known), keep
    self.notes: list[str] = []
    self.missing: list[str] = []
    self._cases, self._words = cases, words
    self._budget = clock.Budget(60 * minutes)
    self._total, self._curves = 60 * minutes, 0

  def wants(self, case: str) -> bool:
    """Whether a case is to be measured."""
    return not self._cases or case in self._cases

  def expect(self, curves: int) -> None:
    """Divides the time that is left among so many curves."""
    self._curves = curves

  def curve(
    self,
    case: str,
    devices: int,
    sizes: list[int],
    work: Callable[[int], float],
    measure: Measure,
    exact: Callable[[int], int] = lambda size: size,
    knee: bool = True,
    cached: bool = False,
  ) -> None:
    """Measures a ladder of sizes, then around the knee, while there is time.

    Args:
      case: the name of the curve.
      devices: that take part.
      sizes: the ladder.
      work: of a size, as `Point.work`.
      measure: one size.
      exact: the size that can be measured, near to another.
      knee: whether to look for the size that saturates.
      cached: whether small sizes may be faster, as `saturation.limit`.
    """
    left = self._left()
    until = left - left / max(1, self._curves)
    self._curves = max(1, self._curves - 1)
    name, before = f'{case} x {devices}', len(self.points)
    have = lambda: record.curve(self.points, case, devices)

    def one(size):
      """Whether the memory suffices, _NoTime if the time does not."""
      if size in {p.size for p in have()}:
        return True
      if self._left() <= until:
        raise _NoTime
      return self._point(case, devices, size, work(size), measure)

    try:
      fits = math.inf
      for size in saturation.ends_first(sorted({exact(s) for s in sizes})):
        if size < fits and not one(size):
          fits = size
      while knee and len(known := have()) > 1:
        size = saturation.next_size({p.size: p.rate for p in known}, cached)
        if not size or not one(exact(size)) or len(have()) == len(known):
          break
    except _NoTime:
      self.missing.append(name)
    if len(self.points) > before:
      self._keep(self)

  def single(
    self, case: str, devices: int, size: int, work: float, measure: Measure
  ) -> None:
    """Measures a point that is part of no curve, if it can end in time."""
    if self._is_too_long(work):
      self.missing.append(f'{case} x {devices}')
      return
    self.curve(case, devices, [size], lambda _: work, measure, knee=False)

  def _is_too_long(self, work: float) -> bool:
    """Whether so much would, at the best rate so far, be taken for a hang."""
    best = max((point.rate for point in self.points), default=0.0)
    seconds = work / best if best else 0.0
    return seconds > self._left() or _CALLS * seconds > self._hang_s

  def tell(self, text: str) -> None:
    """A line of progress."""
    if processes.process() == 0:
      spent = self._total - self._budget.left()
      print(f'{spent:4.0f} s  {text}', file=sys.stderr, flush=True)

  def _left(self) -> float:
    """Seconds, by the clock of process 0."""
    return processes.first_says(self._budget.left)

  def _point(self, case, devices, size, work, measure) -> bool:
    """Measures one; False if the memory does not suffice."""
    known = record.curve(self.points, case, devices)
    what = self._words.format(case=case, size=size, devices=devices)
    try:
      with self.limit.within(what):
        mine = measure(size, _between(known, size))
        timed = processes.first_says(lambda: dataclasses.asdict(mine))
    except jax.errors.JaxRuntimeError as error:
      if 'RESOURCE_EXHAUSTED' not in str(error):
        raise
      self.notes.append(f'{what}: the memory does not suffice.')
      return False
    point = record.Point(
      case=case, devices=devices, size=size, work=work, **timed
    )
    self.points.append(point)
    self.tell(f'{what}: {point.seconds * 1e6:,.1f} us')
    return True


class _NoTime(Exception):
  """The share of a curve is spent."""


def _between(known: list[record.Point], size: int) -> float | None:
  """Seconds of a size with measured neighbours; None: there are none."""
  if not known or not known[0].size < size < known[-1].size:
    return None
  return record.seconds(known, size)
