# SPDX-License-Identifier: Apache-2.0
"""The fit of the learning rate, against losses whose best rate is known."""

import math

import numpy as np
import pytest

from benchmarks import dial_rate
from zaya_jax.config.presets import dial as dial_lib

PEAK, WIDTH, STEP = 3e-3, -0.7, 0.4


def best(width, step=16_384):
  return PEAK * (width / 1024) ** WIDTH * (step / 131_072) ** STEP


def cell(width, longer=1.0, seeds=3, noise=0.0, offset=0.1, shift=1.0):
  """Runs at five rates of the first seed, and at three of the others."""
  rng = np.random.default_rng(width)
  rows = []
  step = round(16_384 * longer)
  rule = dial_lib.learning_rate(width, width // 51, step)
  at = best(width, step) * shift
  for seed in range(seeds):
    for factor in (0.5, 1, 2) if seed else (0.25, 0.5, 1, 2, 4):
      x = math.log(rule * factor / at)
      bpb = 1.0 + 0.03 * x**2 + offset * seed + noise * rng.standard_normal()
      rows.append({
        'dial': width // 51, 'longer': longer, 'experts': 0, 'width': width,
        'vocab': 0, 'row': 0, 'seq_len': 128,
        'layers': width // 51, 'vocabulary': 512, 'active': 10 * width**2,
        'total': 99 * width**2, 'bytes': 1e9, 'tokens': 1000 * step,
        'steps': 1000,
        'bytes_per_token': 2.0, 'factor': factor, 'seed': seed,
        'lr': rule * factor, 'bpb': bpb,
      })  # fmt: skip
  return rows


def test_the_lowest_point_is_found_whatever_seeds_differ_by():
  for offset in (0.0, 0.5):
    x, k = dial_rate.parabola(cell(512, offset=offset))
    assert math.exp(x) == pytest.approx(best(512), rel=1e-6)
    assert k == pytest.approx(0.03, rel=1e-6)
  shifted = dial_rate.parabola(cell(512, shift=1.3))
  assert math.exp(shifted[0]) == pytest.approx(1.3 * best(512), rel=1e-6)


def test_a_best_rate_outside_of_the_rates_is_none():
  assert dial_rate.parabola(cell(512, shift=30)) is None
  assert dial_rate.parabola([r for r in cell(512) if r['factor'] > 1]) is None
  hill = [{**r, 'bpb': -r['bpb']} for r in cell(512, offset=0)]
  assert dial_rate.parabola(hill) is None


def test_a_point_says_its_rate_and_what_the_rule_costs():
  found = dial_rate.point(cell(2048, noise=1e-4))
  assert found['lr'] == pytest.approx(best(2048), rel=0.02)
  low, high = found['lr_range']
  assert low < found['lr'] < high < 1.05 * low
  off = math.log(found['rule'] / best(2048))
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


def sweep(noise=0.0):
  """Of relative losses, as `fit` takes them: a parabola in log bpb."""
  cells = [
    cell(width, longer, noise=noise, offset=0.0)
    for width in (96, 192, 384, 768, 1024)
    for longer in (0.5, 1, 2)
  ]
  return [[{**r, 'bpb': math.exp(r['bpb'])} for r in rows] for rows in cells]


def test_exponents_are_recovered_with_intervals():
  found = dial_rate.fit(sweep(noise=3e-4))
  true = {'peak': PEAK, 'width': WIDTH, 'step': STEP}
  for name, value in true.items():
    low, high = found['range'][name]
    assert low - 0.02 * abs(value) < value < high + 0.02 * abs(value)
    assert high - low < 0.2 * abs(value)
  assert found['k'] == pytest.approx(0.03, rel=0.05)


def test_a_best_rate_at_the_edge_says_what_it_can():
  cells = sweep()
  narrow = [
    rows if i % 2 else [r for r in rows if r['factor'] in (0.25, 0.5)]
    for i, rows in enumerate(cells)
  ]
  assert dial_rate.parabola(narrow[0]) is None
  for some in (cells, narrow):
    found = dial_rate.fit(some)
    assert found['peak'] == pytest.approx(PEAK, rel=1e-4)
    assert found['width'] == pytest.approx(WIDTH, rel=1e-4)
    assert found['step'] == pytest.approx(STEP, rel=1e-4)


def test_rates_that_are_too_far_apart_are_no_curve():
  cells = sweep()
  wide = [r for r in cells[0] if r['factor'] in (0.25, 4)]  # 16 times.
  with_it, without = (dial_rate.fit([*c, *cells[1:]]) for c in ([wide], []))
  assert with_it == without


def test_another_exponent_is_seen():
  """Sibling: rates that do not fall with the width give no such exponent."""
  flat = [
    [{**r, 'lr': r['lr'] * (r['width'] / 1024) ** -WIDTH} for r in rows]
    for rows in sweep()
  ]
  assert dial_rate.fit(flat)['width'] == pytest.approx(0, abs=1e-6)


def test_a_rule_transfers_as_far_as_its_exponents_are_right():
  over = lambda r: dial_rate.rule_of(r) / best(r['width'], r['tokens'] // 1000)
  at = [[{**r, 'lr': r['lr'] * over(r)} for r in rows] for rows in sweep()]
  found = dial_rate.fit(at)
  assert found['now']['costs'] < 1e-6
  assert all(abs(d['off']) < 0.01 for d in found['transfer'].values())
  largest = max(r['dial'] for rows in at for r in rows)
  bent = [
    [{**r, 'lr': r['lr'] * (2 if r['dial'] == largest else 1)} for r in rows]
    for rows in at
  ]
  found = dial_rate.fit(bent)['transfer'][str(largest)]
  assert found['off'] == pytest.approx(1, abs=0.01)
  assert found['costs'] == pytest.approx(0.03 * math.log(2) ** 2, rel=0.02)


def test_too_few_sizes_are_no_rule():
  with pytest.raises(ValueError, match=r'1 width\(s\) and 1 batch\(es\)'):
    dial_rate.fit([cell(96)])
  edge = [[r for r in rows if r['factor'] < 1] for rows in sweep()]
  with pytest.raises(ValueError, match='there are 0 best rates within'):
    dial_rate.fit(edge)
