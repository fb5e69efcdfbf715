# SPDX-License-Identifier: Apache-2.0
"""Entropies stand where their numbers say, and higher ones higher."""

import math
import xml.etree.ElementTree as ET

import pytest

from benchmarks import entropy_picture


def row(variant, lr, bpb, curve, seed=0):
  return {
    'variant': variant, 'lr': lr, 'seed': seed, 'bpb': bpb,
    'curve': [[step, 1.0, entropy, 0.5] for step, entropy in curve],
  }  # fmt: skip


ROWS = [
  row('preset', 1.0, 1.2, [(10, 0.6)]),
  row('preset', 2.0, 1.0, [(1, 0.5), (10, 0.9), (100, 0.99), (400, 0.9999)]),
  row('preset', 2.0, 1.0, [(10, 0.7)], seed=1),
  row('linear router', 1.0, 1.1, [(10, 0.3), (100, None)]),
  row('mha', 1.0, 1.1, [(10, 0.3)]),  # No variant of routers.
]


def test_a_curve_is_that_of_the_best_rate():
  assert entropy_picture.curves(ROWS) == {
    'preset': [(10, 0.9), (100, 0.99), (400, 0.9999)],
    'linear router': [(10, 0.3)],
  }


def test_dots_stand_at_their_entropies():
  picture = ET.fromstring(entropy_picture.draw(ROWS))
  shapes = list(picture.iter('{http://www.w3.org/2000/svg}rect'))
  number = lambda shape, name: float(shape.get(name) or 0)
  dots = [s for s in shapes if number(s, 'width') == 4]
  blue = [s for s in dots if s.get('class') == 'blue']
  x, y = ([number(s, name) for s in blue] for name in 'xy')
  assert (x[2] - x[0]) / (x[1] - x[0]) == pytest.approx(
    math.log(400 / 10) / math.log(100 / 10), rel=1e-3
  )
  # Ten times nearer to 1 is a fixed way up; nothing leaves the picture.
  grid = [number(s, 'y') for s in shapes if number(s, 'height') == 0.5]
  half, nine, _, ninety_nine, top = grid
  assert y[0] + 2 == pytest.approx(nine) and y[2] + 2 == pytest.approx(top)
  assert nine - ninety_nine == pytest.approx(ninety_nine - top, rel=1e-3)
  (orange,) = [s for s in dots if s.get('class') == 'orange']
  assert number(orange, 'y') + 2 == pytest.approx(half)
  # The report's two marks are at 0.99.
  marks = [s for s in shapes if number(s, 'width') == 8]
  assert [number(s, 'y') + 4 for s in marks] == [pytest.approx(ninety_nine)] * 2
