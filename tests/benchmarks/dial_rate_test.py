# SPDX-License-Identifier: Apache-2.0
"""The fit of the learning rate, against losses whose best rate is known."""

import math

import numpy as np
import pytest

from benchmarks import dial_rate
from zaya_jax.config.presets import dial as dial_lib

PEAK, WIDTH, TOKENS = 3e-3, -0.7, -0.3


def best(width, longer):
  return PEAK * (width / 1024) ** WIDTH * longer**TOKENS


def cell(width, longer=1.0, seeds=3, noise=0.0, offset=0.1, shift=1.0):
  """Runs at five rates of the first seed, and at three of the others."""
  rng = np.random.default_rng(width)
  rows = []
  rule = dial_lib.learning_rate(width, 20, longer)
  at = best(width, longer) * shift
  for seed in range(seeds):
    for factor in (0.5, 1, 2) if seed else (0.25, 0.5, 1, 2, 4):
      x = math.log(rule * factor / at)
      bpb = 1.0 + 0.03 * x**2 + offset * seed + noise * rng.standard_normal()
      rows.append({
        'dial': width // 51, 'longer': longer, 'experts': 0, 'width': width,
        'vocab': 0, 'row': 0, 'seq_len': 128,
        'layers': width // 51, 'vocabulary': 512, 'active': 10 * width**2,
        'total': 99 * width**2, 'bytes': 1e9, 'tokens': 10**8,
        'bytes_per_token': 2.0, 'factor': factor, 'seed': seed,
        'lr': rule * factor, 'bpb': bpb,
      })  # fmt: skip
  return rows


def test_the_lowest_point_is_found_whatever_seeds_differ_by():
  for offset in (0.0, 0.5):
    x, k = dial_rate.parabola(cell(512, offset=offset))
    assert math.exp(x) == pytest.approx(best(512, 1), rel=1e-6)
    assert k == pytest.approx(0.03, rel=1e-6)
  shifted = dial_rate.parabola(cell(512, shift=1.3))
  assert math.exp(shifted[0]) == pytest.approx(1.3 * best(512, 1), rel=1e-6)


def test_a_best_rate_outside_of_the_rates_is_none():
  assert dial_rate.parabola(cell(512, shift=30)) is None
  assert dial_rate.parabola([r for r in cell(512) if r['factor'] > 1]) is None
  hill = [{**r, 'bpb': -r['bpb']} for r in cell(512, offset=0)]
  assert dial_rate.parabola(hill) is None


def test_a_point_says_its_rate_and_what_the_rule_costs():
  found = dial_rate.point(cell(2048, noise=1e-4))
  assert found['lr'] == pytest.approx(best(2048, 1), rel=0.02)
  low, high = found['lr_range']
  assert low < found['lr'] < high < 1.05 * low
  off = math.log(found['rule'] / best(2048, 1))
  assert found['cost'] == pytest.approx(0.03 * off**2, rel=0.1)
  assert (found['seeds'], found['spread']) == (3, pytest.approx(0.1, rel=0.01))
  alone = dial_rate.point(cell(2048, seeds=1))
  assert alone['lr_range'] is None and alone['spread'] is None


def test_a_run_that_was_made_twice_is_one_seed():
  rows = cell(512, seeds=1)
  worst = max(rows, key=lambda row: row['bpb'])
  expected = dial_rate.point(rows)['bpb']
  found = dial_rate.point([*rows, worst])
  assert (found['bpb'], found['seeds']) == (expected, 1)
  assert found['context'] == 256


def test_exponents_are_recovered_with_intervals():
  cells = [
    cell(width, longer, noise=3e-4)
    for width in (96, 192, 384, 768, 1024)
    for longer in (0.5, 1, 2)
  ]
  found = dial_rate.fit(cells)
  true = {'peak': PEAK, 'width': WIDTH, 'tokens': TOKENS}
  for name, value in true.items():
    low, high = found['range'][name]
    assert low - 0.02 * abs(value) < value < high + 0.02 * abs(value)
    assert high - low < 0.2 * abs(value)
  assert found['scatter'] < 0.05
  assert found['held_out'] == pytest.approx(1, abs=0.05)


def test_another_exponent_is_seen():
  """Sibling: rates that do not fall with the width give no such exponent."""
  flat = [
    cell(width, shift=(width / 1024) ** -WIDTH) for width in (96, 384, 1024)
  ]
  assert dial_rate.fit(flat)['width'] == pytest.approx(0, abs=1e-6)
  bent = [cell(width) for width in (96, 384)] + [cell(1024, shift=0.5)]
  found = dial_rate.fit(bent)
  assert found['held_out'] == pytest.approx(2, rel=1e-3)
  assert found['scatter'] > 0.1


def test_lengths_that_do_not_vary_leave_their_exponent():
  found = dial_rate.fit([cell(width, seeds=1) for width in (96, 384, 768)])
  assert found['tokens'] is None and found['range'] == {}
  assert found['width'] == pytest.approx(WIDTH)
  with pytest.raises(ValueError, match=r'at 1 width\(s\), and a rule needs 2'):
    dial_rate.fit([cell(96)])
