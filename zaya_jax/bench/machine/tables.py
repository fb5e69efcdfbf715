# SPDX-License-Identifier: Apache-2.0
"""Measurements as tables: one line a curve, then single points."""

import statistics
import sys

import rich.box
import rich.console
import rich.table

from zaya_jax.bench.machine import file
from zaya_jax.bench.sweep import record, saturation

_CACHED = ('memory',)  # Sections whose small sizes show the speed of a cache.
_CURVES = (
  'case', 'on', 'smallest', 'takes', 'largest', 'takes', 'best', '90 % from',
)  # fmt: skip
_POINTS = ('case', 'on', 'takes', 'quartiles', 'rate')
_WIDTH = 100  # Columns in a pipe or a file; a terminal has its own.


def show(noun: str, section: file.Section) -> None:
  """Prints a section on stdout."""
  console = rich.console.Console(highlight=False, markup=False)
  if not console.is_terminal:
    console = rich.console.Console(
      highlight=False, markup=False, width=_WIDTH, file=sys.stdout
    )
  pairs = dict.fromkeys((p.case, p.devices) for p in section.points)
  curves = [record.curve(section.points, *pair) for pair in pairs]
  cached = noun in _CACHED
  lines = [_curve(c, section, cached) for c in curves if len(c) > 1]
  singles = [_point(c[0], section) for c in curves if len(c) == 1]
  heads = [*_CURVES]
  if cached:
    heads[heads.index('best')] = 'at the largest'
  for columns, rows in ((heads, lines), (_POINTS, singles)):
    if rows:
      console.print(_table(noun, columns, rows))
  if noun in ('gemm', 'peak') and len(singles) > 2:
    console.print(_typical(section))
  for note in section.notes:
    console.print(note)
  if section.missing:
    console.print(
      f'not finished in --bench.minutes: {_listed(section.missing)}; with '
      '--output the same command goes on.'
    )


def _listed(names) -> str:
  more = f' and {len(names) - 3} more' if len(names) > 3 else ''
  return f'{", ".join(names[:3])}{more}'


def best(noun: str, section: file.Section) -> float:
  """The best rate of a section; of memory, that of the largest array."""
  points = section.points
  if noun in _CACHED:
    largest = max(p.size for p in points)
    points = tuple(p for p in points if p.size == largest)
  return max(p.rate for p in points)


def _curve(curve, section, cached) -> tuple[str, ...]:
  first, last = curve[0], curve[-1]
  rates = {p.size: p.rate for p in curve}
  limit = saturation.limit(rates, cached) / section.scale
  name = f'{first.case} x {first.devices}'
  # Without its end a search knows a bracket alone.
  coarse = '~' if name in section.missing else ''
  return (
    first.case,
    str(first.devices),
    size(first.size),
    duration(first.seconds),
    size(last.size),
    duration(last.seconds),
    f'{limit:.4g} {section.unit}',
    f'{coarse}{size(saturation.saturated(rates, cached))}',
  )


def _point(point, section) -> tuple[str, ...]:
  return (
    point.case,
    str(point.devices),
    duration(point.seconds),
    f'{duration(point.low)} to {duration(point.high)}',
    f'{point.rate / section.scale:.4g} {section.unit}',
  )


def _typical(section) -> str:
  rates = [p.rate / section.scale for p in section.points]
  return (
    f'best {max(rates):.4g} {section.unit}, typical (the median) '
    f'{statistics.median(rates):.4g} {section.unit}'
  )


def _table(title, columns, rows) -> rich.table.Table:
  table = rich.table.Table(
    title=title, title_justify='left', box=rich.box.SIMPLE_HEAD
  )
  for i, column in enumerate(columns):
    table.add_column(column, justify='right' if i else 'left', no_wrap=True)
  for row in rows:
    table.add_row(*row)
  return table


def size(count: float) -> str:
  """Bytes as people read them: 1.5 MiB."""
  for unit in ('B', 'KiB', 'MiB'):
    if count < 1024:
      return f'{count:.4g} {unit}'
    count /= 1024
  return f'{count:.4g} GiB'


def duration(seconds: float) -> str:
  """Seconds as people read them: 12.5 us."""
  for unit, least in (('s', 1.0), ('ms', 1e-3)):
    if seconds >= least:
      return f'{seconds / least:.4g} {unit}'
  return f'{seconds * 1e6:.4g} us'
