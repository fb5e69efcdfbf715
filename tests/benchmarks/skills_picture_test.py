# SPDX-License-Identifier: Apache-2.0
"""Accuracies stand where their numbers say, over sizes on a log scale."""

import math
import xml.etree.ElementTree as ET

import pytest

from benchmarks import skills, skills_picture


def row(run, active, accuracy):
  found = {
    task: {metric: accuracy, f'{metric}_stderr': 0.02}
    for task, metric in skills.METRIC.items()
  }
  return {'run': f'runs/{run}', 'active': active, 'skills': found}


ROWS = [row('b', 400, 0.6), row('a', 100, 0.4), row('c', 6400, 0.8)]


def test_dots_are_in_order_of_size():
  found = skills_picture.dots(ROWS, 'skill_name')
  assert [dot.run for dot in found] == ['a', 'b', 'c']
  assert found[0] == ('a', 100, 0.4, 0.02)


def test_dots_stand_at_their_sizes_and_accuracies():
  picture = ET.fromstring(skills_picture.draw(ROWS))
  shapes = list(picture.iter('{http://www.w3.org/2000/svg}rect'))
  number = lambda shape, name: float(shape.get(name) or 0)
  dots = [
    s for s in shapes if number(s, 'width') == 8 and s.get('class') == 'blue'
  ]
  x, y = ([number(s, name) for s in dots] for name in 'xy')
  assert (x[2] - x[0]) / (x[1] - x[0]) == pytest.approx(
    math.log(64) / math.log(4), rel=1e-3
  )
  assert y[0] - y[1] == pytest.approx(y[1] - y[2]) and y[0] > y[1]
  # A bar goes as far up as down from its dot.
  bar = next(
    s for s in shapes if number(s, 'width') == 2 and s.get('class') == 'blue'
  )
  middle = number(bar, 'y') + number(bar, 'height') / 2
  assert middle == pytest.approx(y[0] + 4, abs=0.02)
  grid = [number(s, 'y') for s in shapes if number(s, 'height') == 0.5]
  assert y[0] + 4 == pytest.approx(grid[1])
