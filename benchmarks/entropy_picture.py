# SPDX-License-Identifier: Apache-2.0
"""How soon routers spread their tokens, as a picture for docs/evidence.md.

    python -m benchmarks.entropy_picture [RESULT.jsonl] [--output=PICTURE.svg]

The entropy of the load over its largest, mean over layers, by step, of the
first seed of variants of `benchmarks.ablations`, each with its best rate;
beside it the steps after which the report of ZAYA1 has 0.99.
"""

import math
from collections.abc import Callable
from typing import Any

from benchmarks import ablations_table, record, sweep
from benchmarks import ablations_variants as variants
from zaya_jax.plan.show import svg

_WIDTH, _LEFT, _RIGHT, _TOP, _HEIGHT = 820.0, 60.0, 190.0, 46.0, 220.0
_STEPS = 10, 1000
_ENTROPIES = 0.5, 0.999
_COLORS = {
  variants.BASE: 'blue', 'linear router': 'orange', 'no eda': 'green',
  'adam': 'violet', 'sign': 'red',
}  # fmt: skip
# Steps of a model of 1.8B (arXiv 2605.05365).
_REPORT = {'MLP router': 400, 'linear router': 900}


def main() -> None:
  """Draws the runs of a file."""
  record.picture(
    'ablations_small_h100.jsonl',
    'entropy.svg',
    lambda path: draw(ablations_table.alike(sweep.read(path))),
  )


def curves(rows: list[dict[str, Any]]) -> dict[str, list[tuple[int, float]]]:
  """By variant, (step, entropy) of its first seed at its best rate."""
  found = {}
  for name in _COLORS:
    first = ablations_table.best(rows, name).get(0)
    if first:
      found[name] = [
        (step, entropy)
        for step, _, entropy, _ in first['curve']
        if entropy is not None and step >= _STEPS[0]
      ]
  return found


def draw(rows: list[dict[str, Any]]) -> str:
  """The picture of rows of `ablations_table.alike`."""
  title = 'Entropy of the load of experts over its largest, by step'
  drawing = svg.Drawing(
    _WIDTH, title, 'A dot for every ten steps of each variant.'
  )
  drawing.text(12, 26, title, size=15, bold=True)
  x = scale(math.log, _STEPS, _LEFT, _WIDTH - _RIGHT)
  y = scale(lambda e: -math.log(1 - e), _ENTROPIES, _TOP + _HEIGHT, _TOP)
  for entropy in (0.5, 0.9, 0.95, 0.99, 0.999):
    drawing.rect(_LEFT, y(entropy), _WIDTH - _LEFT - _RIGHT, 0.5, 'quiet')
    drawing.text(_LEFT - 8, y(entropy) + 4, f'{entropy:g}', anchor='end')
  for step in (10, 100, 1000):
    drawing.text(x(step), _TOP + _HEIGHT + 18, f'{step:,}', anchor='middle')
  beside = _TOP + 12
  for name, points in curves(rows).items():
    for step, entropy in points:
      drawing.rect(x(step) - 2, y(entropy) - 2, 4, 4, _COLORS[name])
    drawing.rect(_WIDTH - _RIGHT + 16, beside - 9, 9, 9, _COLORS[name])
    drawing.text(_WIDTH - _RIGHT + 32, beside, name)
    beside += 20
  for name, step in _REPORT.items():
    drawing.rect(x(step) - 4, y(0.99) - 4, 8, 8, 'ink', tip=name)
    words = f'{name}: {step} (report)'
    drawing.rect(_WIDTH - _RIGHT + 16, beside - 9, 9, 9, 'ink')
    drawing.text(_WIDTH - _RIGHT + 32, beside, words, size=11)
    beside += 20
  return drawing.render(_TOP + _HEIGHT + 30)


def scale(
  of: Callable[[float], float],
  ends: tuple[float, float],
  begin: float,
  end: float,
) -> Callable[[float], float]:
  """Where a value stands between `begin` and `end`; beyond, at the end."""
  low, high = map(of, ends)

  def at(value: float) -> float:
    share = (of(min(max(value, ends[0]), ends[1])) - low) / (high - low)
    return begin + share * (end - begin)

  return at


if __name__ == '__main__':
  main()
