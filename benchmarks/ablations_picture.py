# SPDX-License-Identifier: Apache-2.0
"""The table of `benchmarks.ablations` as a picture for docs/evidence.md.

    python -m benchmarks.ablations_picture [RESULT.jsonl] [--output=PICTURE.svg]

A row for each variant with two seeds at least: how much worse it is than the
preset on the same seeds, with the 95% interval of that difference.
"""

from typing import Any, NamedTuple

from benchmarks import ablations_table, record, sweep
from benchmarks import ablations_variants as variants
from zaya_jax.plan.show import svg

_WIDTH, _LEFT, _RIGHT, _ROW, _DOT = 820.0, 170.0, 190.0, 26.0, 9.0


class Bar(NamedTuple):
  """A variant beside the preset.

  Attributes:
    name: the variant.
    over: bits per byte more than the preset, a mean over seeds.
    half: half of its 95% interval.
    seeds: how many.
  """

  name: str
  over: float
  half: float
  seeds: int


def main() -> None:
  """Draws the runs of a file."""
  record.picture(
    'ablations_small_h100.jsonl',
    'ablations.svg',
    lambda path: draw(ablations_table.alike(sweep.read(path))),
  )


def bars(rows: list[dict[str, Any]]) -> list[Bar]:
  """The differences that have an interval, largest last.

  Args:
    rows: of `benchmarks.ablations`, of one preset and budget.
  """
  base = ablations_table.best(rows, variants.BASE)
  found = []
  for name in dict.fromkeys(row['variant'] for row in rows):
    mine = ablations_table.best(rows, name)
    both = sorted(mine.keys() & base.keys())
    if name != variants.BASE and len(both) > 1:
      more = [mine[seed]['bpb'] - base[seed]['bpb'] for seed in both]
      found.append(Bar(name, *ablations_table.interval(more), len(both)))
  return sorted(found, key=lambda bar: bar.over)


def draw(rows: list[dict[str, Any]]) -> str:
  """The picture of rows of `ablations_table.alike`."""
  found, one = bars(rows), rows[0]
  title = (
    f'Bits per byte over those of {one["preset"]}, {one["budget"]} each, '
    f'{one["device"]}'
  )
  drawing = svg.Drawing(
    _WIDTH, title, 'Each variant with the 95% interval of its difference.'
  )
  drawing.text(12, 26, title, size=15, bold=True)
  ends = [bar.over + sign * bar.half for bar in found for sign in (-1, 1)]
  low, high = min(0.0, *ends), max(0.0, *ends)
  scale = (_WIDTH - _LEFT - _RIGHT) / (high - low)
  at = lambda value: _LEFT + scale * (value - low)
  y = 46.0
  drawing.rect(at(0) - 0.5, y, 1, _ROW * len(found), 'quiet')
  for bar in found:
    middle = y + _ROW / 2
    drawing.text(_LEFT - 10, middle + 4, bar.name, anchor='end')
    begin, end = at(bar.over - bar.half), at(bar.over + bar.half)
    drawing.rect(begin, middle - 1, end - begin, 2, 'blue')
    drawing.rect(at(bar.over) - _DOT / 2, middle - _DOT / 2, _DOT, _DOT, 'blue')
    words = f'{bar.over:+.3f} ± {bar.half:.3f}, {bar.seeds} seeds'
    drawing.text(_WIDTH - _RIGHT + 14, middle + 4, words, kind='quiet')
    y += _ROW
  return drawing.render(y + 12)


if __name__ == '__main__':
  main()
