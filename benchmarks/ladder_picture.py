# SPDX-License-Identifier: Apache-2.0
"""The table of `benchmarks.ladder` as a picture for docs/performance.md.

  python -m benchmarks.ladder_picture [RESULT.json] [--output=PICTURE.svg]

One bar for each program, as long as its share of the tokens per second of the
fastest program of its preset.
"""

import json
from typing import Any

from benchmarks import record
from zaya_jax.plan.show import svg

_WIDTH, _LEFT, _RIGHT, _BAR, _GAP = 820.0, 170.0, 370.0, 22.0, 14.0
_COLORS = {'zaya_jax': 'blue', 'dense GPT': 'grey'}


def main() -> None:
  """Reads the newest row of each preset and program, and draws them."""
  record.picture(
    'ladder_h200.json',
    'ladder.svg',
    lambda path: draw(rows_of(json.loads(path.read_text()))),
  )


def rows_of(result: dict[str, Any]) -> list[dict[str, Any]]:
  """The last good row of each preset and program, smallest preset first."""
  runs = result.get('runs', [result])
  rows = [row for run in runs for row in run['rows'] if 'error' not in row]
  last = {(row['preset'], row['program']): row for row in rows}
  return sorted(last.values(), key=lambda row: -row['tokens_per_s'])


def draw(rows: list[dict[str, Any]]) -> str:
  """The picture of rows of `benchmarks.ladder`."""
  kinds = {row['device'] for row in rows if 'device' in row}
  drawing = svg.Drawing(
    _WIDTH,
    'Training speed of each preset beside a dense model of its size',
    'Tokens per second of a whole training step, and the share of the peak.',
  )
  title = f'Tokens per second, whole training steps, {", ".join(sorted(kinds))}'
  drawing.text(12, 26, title, size=15, bold=True)
  y = 46.0
  for preset in dict.fromkeys(row['preset'] for row in rows):
    mine = [row for row in rows if row['preset'] == preset]
    fastest = max(row['tokens_per_s'] for row in mine)
    for row in sorted(mine, key=lambda row: row['program'] != 'zaya_jax'):
      name = f'{preset}, {row["program"]}'
      drawing.text(_LEFT - 10, y + 0.7 * _BAR, name, anchor='end')
      width = (_WIDTH - _LEFT - _RIGHT) * row['tokens_per_s'] / fastest
      drawing.rect(_LEFT, y, width, _BAR, _COLORS[row['program']])
      words = (
        f'{row["tokens_per_s"]:,.0f} a second, {row["mfu"]:.1%} of the peak, '
        f'{row["active"] / 1e6:.0f}M active'
      )
      drawing.text(_LEFT + width + 8, y + 0.7 * _BAR, words, kind='quiet')
      y += _BAR + 3
    y += _GAP
  return drawing.render(y)


if __name__ == '__main__':
  main()
