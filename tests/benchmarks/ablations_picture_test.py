# SPDX-License-Identifier: Apache-2.0
"""Differences of ablations stand where their numbers say."""

import xml.etree.ElementTree as ET

import pytest

from benchmarks import ablations_picture, ablations_table


def row(variant, seed, bpb, budget='40 s'):
  return {
    'preset': 'small', 'budget': budget, 'variant': variant, 'lr': 1.0,
    'seed': seed, 'bpb': bpb, 'device': 'H100',
  }  # fmt: skip


ROWS = [
  row('preset', 0, 1.0),
  row('preset', 1, 1.1),
  row('adamw', 0, 1.3),
  row('adamw', 1, 1.4),  # The same difference on both seeds: no noise.
  row('mha', 0, 1.1),
  row('mha', 1, 1.21),
  row('no eda', 0, 0.9),  # One seed has no interval.
  row('preset', 0, 2.0, budget='speed'),
]


def test_differences_are_taken_seed_by_seed():
  mha, adamw = ablations_picture.bars(ablations_table.alike(ROWS))
  assert (mha.name, adamw.name) == ('mha', 'adamw')
  assert mha.over == pytest.approx(0.105) and mha.seeds == 2
  # Of two values half an interval is 12.71 times half of their distance.
  assert mha.half == pytest.approx(12.71 * 0.005)
  assert adamw.over == pytest.approx(0.3)
  assert adamw.half == pytest.approx(0, abs=1e-9)


def test_a_dot_is_as_far_from_zero_as_its_number():
  picture = ET.fromstring(ablations_picture.draw(ablations_table.alike(ROWS)))
  shapes = list(picture.iter('{http://www.w3.org/2000/svg}rect'))
  middle = lambda shape: float(shape.get('x')) + float(shape.get('width')) / 2
  (zero,) = [s for s in shapes if s.get('class') == 'quiet']
  dots = [s for s in shapes if float(s.get('height') or 0) == 9]
  near, far = (middle(dot) - middle(zero) for dot in dots)
  assert near / far == pytest.approx(0.105 / 0.3, rel=1e-3)
  words = ' '.join(picture.itertext())
  assert '+0.105 ± 0.064, 2 seeds' in words and 'no eda' not in words


def test_runs_that_cannot_be_compared_are_not():
  with pytest.raises(SystemExit, match='one preset, budget and device'):
    ablations_table.alike([*ROWS, row('mha', 0, 1.0, budget='80 s')])
