# SPDX-License-Identifier: Apache-2.0
"""What `benchmarks.dial` has found, as tables, and the law as a file."""

import json
import math
from collections.abc import Iterator
from typing import Any

from benchmarks import dial_cells, dial_law

Row = dict[str, Any]
_HEAD = (
  'dial', 'tokens', 'held', 'active', 'total', 'best rate', 'over the rule',
  'the rule costs', 'bits per byte', 'law, without it',
)  # fmt: skip


def line(row: Row) -> str:
  """A run in one line."""
  held = ''.join(f'{n} {row[n]}  ' for n in dial_cells.HELD if row[n])
  bpb = 'diverged' if row['bpb'] is None else f'{row["bpb"]:.4f} bits per byte'
  return (
    f'dial {row["dial"]:<3} x{row["longer"]:<4g} {held}'
    f'lr {row["lr"]:.3g} (x{row["factor"]:g})  seed {row["seed"]}  {bpb}  '
    f'{row["steps"]:,} steps  {row["tokens_per_s"]:,.0f} tokens/s'
  )


def table(found: Row) -> Iterator[str]:
  """Lines of Markdown: cells, the rule of the rate, the law.

  Args:
    found: of `dial.fit`.
  """
  yield f'| {" | ".join(_HEAD)} |'
  yield '|' + ' --- |' * len(_HEAD)
  errors = found['law'].get('left_out') or [None] * len(found['points'])
  for point, error in zip(found['points'], errors, strict=True):
    yield f'| {" | ".join(_cells(point, error))} |'
  yield ''
  yield from _rate(found['rate'])
  yield from _law(found['law'])


def _cells(point, error) -> list[str]:
  held = (f'{point[n]:,} {n}' for n in dial_cells.HELD if point[n])
  spread = point['spread']
  rate = [point['lr'] and f'{point["lr"]:.2e}', None, None]
  if point['lr']:
    rate[1] = f'x{point["lr"] / point["rule"]:.2f}'
    if point['lr_range']:
      low, high = (lr / point['rule'] for lr in point['lr_range'])
      rate[1] += f', {low:.2f} to {high:.2f}'
    rate[2] = f'{point["cost"]:.4f}'
  return [
    f'{point["dial"]}',
    f'x{point["longer"]:g}: {point["tokens"]:,}',
    ', '.join(held) or 'nothing',
    f'{point["active"] / 1e6:.3g}M',
    f'{point["total"] / 1e6:.3g}M',
    *(cell or 'not within the rates' for cell in rate[:1]),
    *(cell or '—' for cell in rate[1:]),
    f'{point["bpb"]:.4f}' + (f' ± {spread:.4f}' if spread is not None else ''),
    '—' if error is None else f'{error:+.2%}',
  ]


def _rate(rate) -> Iterator[str]:
  if 'missing' in rate:
    yield f'No rule of the learning rate: {rate["missing"]}'
    return
  words = []
  for name, (low, high) in rate['range'].items():
    now = rate['now'][name]
    words.append(
      f'{name} {rate[name]:.3g} ({low:.3g} to {high:.3g}), now {now}'
    )
  yield f'Learning rate: {"; ".join(words)}; k {rate["k"]:.2g}.'
  yield f'The rule costs {rate["now"]["costs"]:.2%} of the loss in the mean.'
  yield 'With a peak from all other dials, by dial, best rates over its rates:'
  for dial, found in rate['transfer'].items():
    over = 2 ** found['off']
    yield f'dial {dial}: {over:.2f}; it costs {found["costs"]:.2%} of the loss'


def _law(law) -> Iterator[str]:
  if 'missing' in law:
    yield f'No law: {law["missing"]}'
    return
  constants = ', '.join(f'{k} {v:.4g}' for k, v in law['constants'].items())
  yield f'Law: {constants}; {law["rms"]:.2%} root mean square.'
  held = law['held_out']
  yield (
    f'Largest run (dial {held["dial"]}, x{held["longer"]:g}): predicted '
    f'{held["predicted"]:.4f} from all others, measured '
    f'{held["measured"]:.4f}, {held["error"]:+.2%}.'
  )


def toml(found: Row, rows: list[Row], command: str) -> str:
  """The law as `zaya_jax.plan.law` reads it.

  Args:
    found: of `dial.fit`.
    rows: the runs.
    command: that fitted it.

  Raises:
    SystemExit: if there is no law.
  """
  law, points = found['law'], found['points']
  if 'missing' in law:
    raise SystemExit(f'--law: no law: {law["missing"]}')
  newest = max(rows, key=lambda row: row['date'])
  covers = {
    name: [min(p[name] for p in points), max(p[name] for p in points)]
    for name in dial_law.SIZES
  }
  tokens: dict[int, list[float]] = {}
  for point in points:
    tokens.setdefault(point['vocabulary'], []).append(point['bytes_per_token'])
  about = {
    'text': f'{len(rows)} runs on {newest["text"]}, {newest["date"][:10]}',
    'command': command,
  }
  tables = {
    'constants': law['constants'],
    'covers': covers,
    'bytes_per_token': {
      str(vocabulary): math.fsum(each) / len(each)
      for vocabulary, each in sorted(tokens.items())
    },
    'about': about,
  }
  lines = ['# Written by python -m benchmarks.dial --fit --law.']
  lines.append(f'held_out = {abs(law["held_out"]["error"])}')
  for name, values in tables.items():
    lines += ['', f'[{name}]']
    # Numbers, lists of numbers and strings read alike in JSON.
    lines += [f'{key} = {json.dumps(value)}' for key, value in values.items()]
  return '\n'.join(lines) + '\n'
