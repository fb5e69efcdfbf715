# SPDX-License-Identifier: Apache-2.0
"""The page of a first contact, and the archive of all that it has written."""

import json
import pathlib
import tarfile
from typing import Any

from zaya_jax.bench.machine import file
from zaya_jax.preflight.contact import losses, verdicts
from zaya_jax.report import figures, machine, page

PAGE = 'first-contact.html'
ARCHIVE = 'first-contact.tar.gz'
_LARGEST = 2**22  # Bytes of a file in the archive.
_LEFT_OUT = ('checkpoints', 'data', 'tensorboard', 'report.html')
_COLUMNS = ('op', 'case', 'pass', 'engine', 'ms', 'tflops', 'gbps', 'of_limit')


def write(root: pathlib.Path, title: str, stages: list[dict[str, Any]]) -> None:
  """Writes page and archive, of what is there.

  Args:
    root: folder of the first contact.
    title: which machine.
    stages: name, outcome, said, advice and seconds of each.
  """
  advice = [f'{s["name"]}: {line}' for s in stages for line in s['advice']]
  found = page.Page(
    title=f'First contact: {title}',
    status=', '.join(f'{s["name"]} {s["outcome"]}' for s in stages),
    columns=['outcome', 'found', 'seconds'],
    summary=[
      [s['name'], s['outcome'], s['said'], f'{s["seconds"]:.0f}']
      for s in stages
    ],
    figures=_figures(root),
    lacks=advice,
    details=_details(root),
    alone=True,
    footer=f'All files and logs: {ARCHIVE} beside this page.',
  )
  page.write(found, root / PAGE)
  pack(root)


def pack(root: pathlib.Path) -> None:
  """Writes the archive: all but checkpoints, data and what is too large."""
  name = root.name or 'first-contact'
  partial = root / f'{ARCHIVE}.partial'
  with tarfile.open(partial, 'w:gz') as archive:
    for path in sorted(root.rglob('*')):
      inside = path.relative_to(root)
      if path.name.startswith(ARCHIVE) or not path.is_file():
        continue
      if set(inside.parts) & set(_LEFT_OUT):
        continue
      if path.stat().st_size <= _LARGEST or path.name == PAGE:
        archive.add(path, f'{name}/{inside}', recursive=False)
  partial.replace(root / ARCHIVE)


def _figures(root) -> list[figures.Figure]:
  made = [_checks(root), _kernels(root), _engines(root), *_machine(root)]
  return [*made, _losses(root)]


def _table(key, title, caption, columns, rows) -> figures.Figure:
  choices = [{'label': '', 'columns': [*columns], 'rows': rows}] if rows else []
  return figures.Figure(
    id=key,
    title=title,
    caption=caption,
    kind='table',
    wide=True,
    choices=choices,
    missing='This stage has left nothing.',
  )


def _checks(root) -> figures.Figure:
  path, columns = (
    root / 'preflight.json',
    ('name', 'outcome', 'found', 'wanted'),
  )
  checks = json.loads(path.read_text())['checks'] if path.exists() else []
  order = ('fault', 'warning', 'not checked', 'fit')
  checks.sort(key=lambda c: order.index(c['outcome']))
  return _table(
    'preflight',
    'Node',
    'What was checked; not checked is what nobody could see.',
    columns,
    [[c[name] for name in columns] for c in checks],
  )


def _kernels(root) -> figures.Figure:
  """Counts of outcomes of each engine, and its largest error."""
  rows: list[dict[str, Any]] = []
  for path in sorted(root.glob('check_*.json')):
    rows += json.loads(path.read_text())['rows']
  groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
  for row in rows:
    if row['engine']:
      key = row['op'], row['engine'], row['dtype']
      groups.setdefault(key, []).append(row)
  table = []
  for key, mine in groups.items():
    count = lambda outcome, mine=mine: sum(
      r['outcome'] == outcome for r in mine
    )
    errors = [row['error'] for row in mine if row['error'] is not None]
    worst = round(max(errors), 3) if errors else '-'
    outcomes = [count(o) for o in ('right', 'wrong', 'failed', 'left out')]
    table.append([*key, *outcomes, worst])
  columns = ('op', 'engine', 'dtype', 'right', 'wrong', 'failed', 'left out')
  return _table(
    'kernels',
    'Kernels',
    'Comparisons with the meaning in float64, value and gradients; the largest '
    'error is in shares of what is allowed. Left out: inputs that an engine '
    'says it cannot take.',
    (*columns, 'largest error'),
    table,
  )


def _engines(root) -> figures.Figure:
  rows = [row for row in verdicts.read_engines(root) if 'ms' in row]
  cell = lambda x: '-' if x is None else float(f'{x:.4g}')
  return _table(
    'engines',
    'Engines',
    'Median time of a call; of limit: the least time that the data sheet '
    'allows, over this time.',
    _COLUMNS,
    [
      [
        *(row[name] for name in _COLUMNS[:4]),
        *(cell(row[n]) for n in _COLUMNS[4:]),
      ]
      for row in rows
    ],
  )


def _machine(root) -> list[figures.Figure]:
  path = root / 'machine.json'
  if not path.exists():
    return []
  found = file.read(str(path))
  parts = found.sections.items()
  return [one for noun, part in parts for one in machine.of_section(noun, part)]


def _losses(root) -> figures.Figure:
  traces = []
  for i, name in enumerate(('device', 'cpu')):
    if (root / 'training' / name / 'metrics.jsonl').exists():
      found = losses.read(root / 'training' / name)
      traces.append(
        {'name': name, 'x': [*found], 'y': [*found.values()], 'place': [i, i]}
      )
  titles = {'x_title': 'step', 'y_title': 'nats', 'log': False}
  return figures.Figure(
    id='training',
    title='Loss of the quick start',
    caption='The same steps on this device and on one CPU.',
    kind='lines',
    choices=[{'label': '', 'traces': traces, **titles}] if traces else [],
    missing='There was no training.',
  )


def _details(root) -> list[tuple[str, str]]:
  """Plan, versions, and the end of each log of errors."""
  made = []
  for name in ('logs/device.out', 'logs/plan.out', 'logs/machine.out'):
    if (root / name).exists():
      made.append((name, (root / name).read_text(errors='replace')))
  for path in sorted((root / 'logs').glob('*.err')):
    if text := path.read_text(errors='replace').strip():
      made.append((f'logs/{path.name}, its end', text[-4000:]))
  return made
