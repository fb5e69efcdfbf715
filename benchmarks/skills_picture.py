# SPDX-License-Identifier: Apache-2.0
"""What a size can do, as a picture for docs/evidence.md.

    python -m benchmarks.skills_picture [RESULT.jsonl] [--output=PICTURE.svg]

The accuracy of each run of `benchmarks.skills` by its active parameters, one
color for each task, with bars of one standard error; a line at chance.
"""

import math
import pathlib
from typing import Any, NamedTuple

from benchmarks import entropy_picture, record, skill_tasks, skills, sweep
from zaya_jax.plan.show import svg

_WIDTH, _LEFT, _RIGHT, _TOP, _HEIGHT = 820.0, 60.0, 190.0, 46.0, 240.0
_ACCURACIES = 0.2, 1.0
_COLORS = {
  'skill_function': 'blue', 'skill_name': 'orange', 'skill_word': 'green',
}  # fmt: skip
_NAMES = {
  'skill_function': 'next lines of a function',
  'skill_name': 'a name of the function',
  'skill_word': 'a word of the document',
}


class Dot(NamedTuple):
  """A run in a task.

  Attributes:
    run: its name.
    active: parameters.
    accuracy: a share of the questions.
    error: its standard error.
  """

  run: str
  active: int
  accuracy: float
  error: float


def main() -> None:
  """Draws the runs of a file."""
  record.picture(
    'skills_h200.jsonl', 'skills.svg', lambda path: draw(sweep.read(path))
  )


def dots(rows: list[dict[str, Any]], task: str) -> list[Dot]:
  """The runs in a task, the smallest first."""
  metric = skills.METRIC[task]
  found = [
    Dot(
      pathlib.Path(row['run']).name,
      row['active'],
      row['skills'][task][metric],
      row['skills'][task][f'{metric}_stderr'],
    )
    for row in rows
  ]
  return sorted(found, key=lambda dot: dot.active)


def draw(rows: list[dict[str, Any]]) -> str:
  """The picture of rows of `benchmarks.skills`."""
  title = 'Questions answered right, by active parameters'
  drawing = svg.Drawing(_WIDTH, title, 'A dot for each run in each task.')
  drawing.text(12, 26, title, size=15, bold=True)
  sizes = [row['active'] for row in rows]
  ends = min(sizes) / 1.3, max(sizes) * 1.3
  x = entropy_picture.scale(math.log, ends, _LEFT, _WIDTH - _RIGHT)
  bottom = _TOP + _HEIGHT
  y = entropy_picture.scale(float, _ACCURACIES, bottom, _TOP)
  for accuracy in (0.2, 0.4, 0.6, 0.8, 1.0):
    drawing.rect(_LEFT, y(accuracy), _WIDTH - _LEFT - _RIGHT, 0.5, 'quiet')
    drawing.text(_LEFT - 8, y(accuracy) + 4, f'{accuracy:.0%}', anchor='end')
  chance = 1 / skill_tasks.ANSWERS
  drawing.rect(_LEFT, y(chance) - 1, _WIDTH - _LEFT - _RIGHT, 2, 'grey')
  drawing.text(_WIDTH - _RIGHT + 16, y(chance) + 4, 'chance')
  beside = _TOP + 12
  for task, color in _COLORS.items():
    for dot in dots(rows, task):
      low, high = dot.accuracy - dot.error, dot.accuracy + dot.error
      tip = f'{dot.run}: {dot.accuracy:.3f} ± {dot.error:.3f}'
      drawing.rect(x(dot.active) - 1, y(high), 2, y(low) - y(high), color)
      middle = x(dot.active) - 4, y(dot.accuracy) - 4
      drawing.rect(*middle, 8, 8, color, tip=tip)
    drawing.rect(_WIDTH - _RIGHT + 16, beside - 9, 9, 9, color)
    drawing.text(_WIDTH - _RIGHT + 32, beside, _NAMES[task], size=11)
    beside += 20
  for dot in dots(rows, next(iter(_COLORS))):
    words = f'{dot.active / 1e6:.2g}M'
    drawing.text(x(dot.active), bottom + 18, words, anchor='middle')
  return drawing.render(bottom + 30)


if __name__ == '__main__':
  main()
