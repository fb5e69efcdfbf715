# SPDX-License-Identifier: Apache-2.0
"""The bars of the ladder are as long as its numbers say."""

import re
import xml.etree.ElementTree as ET

from benchmarks import ladder_picture


def row(preset, program, speed):
  return {
    'preset': preset, 'program': program, 'tokens_per_s': speed, 'mfu': 0.5,
    'active': 2e7, 'device': 'NVIDIA H200',
  }  # fmt: skip


RUNS = {
  'runs': [
    {'rows': [row('small', 'zaya_jax', 50.0), {'error': 'no memory'}]},
    {'rows': [row('small', 'zaya_jax', 75.0), row('small', 'dense GPT', 100)]},
    {'rows': [row('medium', 'dense GPT', 20), row('medium', 'zaya_jax', 10)]},
  ]
}


def bars(rows):
  picture = ET.fromstring(ladder_picture.draw(rows))
  found = picture.iter('{http://www.w3.org/2000/svg}rect')
  return [
    (shape.get('class'), float(shape.get('width')))
    for shape in found
    if shape.get('class') in ('blue', 'grey')
  ]


def test_the_newest_row_counts_and_bars_are_in_proportion():
  rows = ladder_picture.rows_of(RUNS)
  assert [r['tokens_per_s'] for r in rows] == [100, 75.0, 20, 10]
  (ours, short), (theirs, long), *medium = bars(rows)
  assert (ours, theirs) == ('blue', 'grey')
  assert abs(short / long - 0.75) < 1e-3
  assert medium == [('blue', long / 2), ('grey', long)]


def test_the_numbers_stand_beside_the_bars():
  text = ladder_picture.draw(ladder_picture.rows_of(RUNS))
  assert re.search(r'75 a second, 50.0% of the peak, 20M active', text)
  assert '50 ' not in re.findall(r'>(\d+ )', text)  # The older row.
