# SPDX-License-Identifier: Apache-2.0
"""The plan of a recipe as one table, and as a picture of the whole run."""

from typing import Any

from zaya_jax.metrics import text
from zaya_jax.plan.show import svg, tables

_WIDTH, _MARGIN, _LABEL = 960, 24, 150
_BAR, _GAP = 30, 12
_LEAST = 3  # Pixels of a segment.
_COLORS = ('blue', 'green', 'orange', 'violet', 'teal', 'sand', 'olive', 'pink')
_COLUMNS = (
  'phase', 'tokens', 'steps', 'rows', 'length', 'mesh', 'memory', 'sent',
  'step', 'time', 'pages/s', 'saved',
)  # fmt: skip


def show(plan: dict[str, Any]) -> None:
  """Prints the plan of `phases.make`."""
  first = plan['segments'][0]['plan']
  chip = f'{first["devices"]:,} x {first["chip"]["name"]}'
  title = f'{plan["recipe"]} on {chip}, by formula'
  rows = [_row(segment) for segment in plan['segments']]
  total = plan['total']
  rows.append(
    [
      'together', text.short(total['tokens']), f'{total["steps"]:,}', '', '',
      '', tables.nbytes(total['memory']), '', '', _time(total['days']),
      '', tables.nbytes(total['checkpoint_bytes']),
    ]
  )  # fmt: skip
  tables.print_all([(title, _COLUMNS, rows), *_compiled(plan)], width=110)
  for segment in plan['segments']:
    for rule in segment['plan']['lint']:
      if not rule['good']:
        print(
          f'{segment["phase"]}: {rule["rule"]}. {rule["advice"]} '
          f'({rule["value"]})'
        )


def draw(plan: dict[str, Any]) -> str:
  """SVG of the plan of `phases.make`: time from left to right, and memory."""
  first, total = plan['segments'][0]['plan'], plan['total']
  title = f'{plan["recipe"]} on {first["devices"]:,} x {first["chip"]["name"]}'
  summary = (
    f'{text.short(total["tokens"])} tokens in {total["steps"]:,} steps and '
    f'{_time(total["days"])}, {text.short(total["device_hours"])} '
    'GPU-hours'
  )
  page = svg.Drawing(_WIDTH, title, summary)
  page.text(_MARGIN, 40, title, size=20, bold=True)
  page.text(_MARGIN, 64, summary, kind='quiet')
  y = _times(page, plan, 104)
  y = _memory(page, plan, y + 36)
  page.text(
    _MARGIN, y + 20, 'By formula: what the machine allows, not a prediction.',
    size=12, kind='quiet',
  )  # fmt: skip
  return page.render(y + 40)


def _row(segment) -> list[str]:
  others = {k: n for k, n in segment['mesh'].items() if k != 'replica'}
  mesh = [f'{axis} {n}' for axis, n in others.items() if n > 1]
  return [
    segment['phase'],
    text.short(segment['tokens']),
    f'{segment["steps"]:,}',
    f'{segment["batch_size"]:,}',
    f'{segment["seq_len"]:,}',
    ' x '.join(mesh),
    f'{tables.nbytes(segment["memory"])}',
    tables.nbytes(segment['sent']),
    tables.seconds(segment['step']),
    _time(segment['days']),
    f'{segment["iops"]:,.0f}',
    tables.nbytes(segment['checkpoint_bytes']),
  ]


def _time(days: float) -> str:
  """3.6 d, or hours."""
  return f'{days:.1f} d' if days >= 1 else f'{24 * days:.1f} h'


def _compiled(plan):
  """What the compiler says of each kind of step."""
  for name, found in plan.get('compiled', {}).items():
    rows = [
      (what, tables.nbytes(formula), tables.nbytes(real))
      for what, (formula, real) in found['compare'].items()
    ]
    title = (
      f'the step of {name}, compiled by XLA:ROCm for gfx942 in '
      f'{tables.seconds(found["seconds"])}'
    )
    yield title, ('', 'formula', 'compiler'), rows
    yield tables.rules(f'contracts of the step of {name}', found['contracts'])


def _color(plan) -> dict[str, str]:
  names = list(dict.fromkeys(s['phase'] for s in plan['segments']))
  return {name: _COLORS[i % len(_COLORS)] for i, name in enumerate(names)}


def _times(page, plan, y):
  """The run as one bar, phases in their colors."""
  colors, total = _color(plan), plan['total']['seconds']
  width = _WIDTH - _LABEL - _MARGIN
  page.text(_MARGIN, y, 'The run', size=15, bold=True)
  y, x = y + 16, float(_LABEL)
  for segment in plan['segments']:
    size = segment['seconds'] / total * width
    tip = (
      f'{segment["phase"]}: {text.short(segment["tokens"])} tokens, '
      f'{segment["batch_size"]:,} x {segment["seq_len"]:,}, '
      f'{_time(segment["days"])}'
    )
    page.rect(
      x, y, max(size - 1, _LEAST), _BAR, colors[segment['phase']], tip=tip
    )
    if svg.measure(segment['phase'], 11) + 8 < size:
      page.text(x + 4, y + 19, segment['phase'], size=11, kind='on')
    x += size
  page.text(_MARGIN, y + 20, 'time')
  return y + _BAR


def _memory(page, plan, y):
  """A bar for each segment: memory of a device, and the time of a step."""
  colors, most = _color(plan), max(s['capacity'] for s in plan['segments'])
  scale = (_WIDTH - _LABEL - _MARGIN - 240) / most
  page.text(_MARGIN, y, 'Memory of a device', size=15, bold=True)
  y += 16
  for segment in plan['segments']:
    width = segment['memory'] * scale
    words = (
      f'{tables.nbytes(segment["memory"])}, a step of '
      f'{segment["batch_size"]:,} x {segment["seq_len"]:,} in '
      f'{tables.seconds(segment["step"])}'
    )
    page.text(_MARGIN, y + 20, segment['phase'])
    page.rect(_LABEL, y, width, _BAR, colors[segment['phase']], tip=words)
    page.text(_LABEL + width + 8, y + 20, words, size=12)
    y += _BAR + _GAP
  return y
