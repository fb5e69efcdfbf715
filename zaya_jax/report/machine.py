# SPDX-License-Identifier: Apache-2.0
"""machine.json as figures: rates by size, and products of matrices as maps."""

import re
from typing import Any

from zaya_jax.bench.machine import file
from zaya_jax.bench.sweep import record
from zaya_jax.report import figures, page

_SHAPE = re.compile(r'(\d+)x(\d+)x(\d+) ')  # Of a product of the grid: M, N, K.
_CAPTIONS = {
  'collectives': 'Bus bandwidth by the size of a message. A flat top is the '
  'link; where a curve leaves it, latency begins.',
  'memory': 'Bytes read and written by the size of an array. The right end is '
  'the memory; a hump before it is a cache.',
  'transfer': 'Copies between host and device; pinned memory is what saves '
  'use.',
  'storage': 'Blocks read at random places, by threads.',
}


def make(machine: file.Machine, path: str) -> page.Page:
  """The page of a machine file.

  Args:
    machine: what was measured.
    path: of the file.
  """
  sections = machine.sections.items()
  versions = lambda part: ', '.join(
    f'{k} {v}' for k, v in part.versions.items()
  )
  return page.Page(
    title=machine.name,
    status=path,
    columns=['date', 'points', 'versions'],
    summary=[
      [noun, part.date, str(len(part.points)), versions(part)]
      for noun, part in sections
    ],
    figures=[one for noun, part in sections for one in of_section(noun, part)],
    lacks=[
      f'{noun}: there was no time for {", ".join(part.missing)}.'
      for noun, part in sections
      if part.missing
    ],
    alone=True,
    footer='How to read each: docs/machine.md.',
  )


def of_section(noun: str, section: file.Section) -> list[figures.Figure]:
  """The figures of one kind of measurement.

  Args:
    noun: 'memory' and its like.
    section: its points.
  """
  keys = dict.fromkeys((p.case, p.devices) for p in section.points)
  curves = {key: record.curve(section.points, *key) for key in keys}
  lines = {key: curve for key, curve in curves.items() if len(curve) > 1}
  singles = [curve[0] for curve in curves.values() if len(curve) == 1]
  made = [_lines(noun, section, lines)] if lines or not singles else []
  if noun == 'gemm' and (maps := _maps(section)):
    made.append(maps)
  if singles:
    made.append(_points(noun, section, singles))
  return made


def _lines(noun, section, curves) -> figures.Figure:
  """Rates by size, a curve for each case and number of devices."""
  scale = section.scale
  traces = [
    {
      'name': f'{case} x {devices}',
      'x': [p.size for p in curve],
      'y': [float(f'{p.rate / scale:.4g}') for p in curve],
      'place': [i % 6, i // 6],
    }
    for i, ((case, devices), curve) in enumerate(curves.items())
  ]
  titles = {'x_title': 'bytes', 'y_title': section.unit}
  choice = {'label': '', 'traces': traces, 'log': True, 'log_x': True, **titles}
  words = (
    _CAPTIONS.get(noun, ''),
    *section.notes,
    'Both axes are logarithmic.',
  )
  return figures.Figure(
    id=noun,
    title=noun,
    caption=' '.join(filter(None, words)) if traces else '',
    kind='lines',
    choices=[choice] if traces else [],
    missing=' '.join(section.notes) or 'Nothing was measured.',
  )


def _maps(section) -> figures.Figure | None:
  """A map of M and N for each K of the grid; None: no grid was measured."""
  scale = section.scale
  rates = {
    tuple(map(int, found.groups())): float(f'{p.rate / scale:.4g}')
    for p in section.points
    if (found := _SHAPE.match(p.case))
  }
  ms, ns, ks = (sorted({shape[i] for shape in rates}) for i in range(3))
  choices: list[dict[str, Any]] = [
    {
      'label': f'K = {k}',
      'x': ns,
      'y': [f'M = {m}' for m in ms],
      'z': [[rates.get((m, n, k)) for n in ns] for m in ms],
      'x_title': 'N',
      'unit': section.unit,
      'most': max(rates.values()),
    }
    for k in ks
  ]
  if not choices:
    return None
  return figures.Figure(
    id='gemm-map',
    title='Products by shape',
    caption='[M, K] times [K, N]. All maps have one scale of colours: dark is '
    'the best of all shapes. A shape far below it is too small to fill the '
    'device, or its library has no good kernel for it.',
    kind='heat',
    choices=choices,
    start=len(choices) - 1,
  )


def _points(noun, section, points) -> figures.Figure:
  """Single points as a table, the best first."""
  scale = section.scale
  best = max(p.rate for p in points)
  rows = [
    [
      p.case,
      p.devices,
      float(f'{p.seconds * 1e6:.4g}'),
      float(f'{p.rate / scale:.4g}'),
      f'{p.rate / best:.0%}',
    ]
    for p in sorted(points, key=lambda p: -p.rate)
  ]
  columns = ['case', 'on', 'us', section.unit, 'of the best']
  return figures.Figure(
    id=f'{noun}-points',
    title=f'{noun}, points' if noun in _CAPTIONS else noun,
    caption=' '.join(('Median time of a call.', *section.notes)),
    kind='table',
    choices=[{'label': '', 'columns': columns, 'rows': rows}],
  )
