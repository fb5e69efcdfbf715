# SPDX-License-Identifier: Apache-2.0
"""The fit of the scaling law, against losses made by a law that is known."""

import math
import re

import numpy as np
import pytest

from benchmarks import dial, dial_law, record, sweep
from zaya_jax.plan import law as law_lib

# As Chinchilla's, in bits per byte.
TRUE = {
  'E': 0.55,
  'A': 60.0,
  'a': 0.34,
  'B': 90.0,
  'b': 0.28,
  'g': 0.2,
  'c': 0.15,
}


def points(
  noise=0.0, ratios=(3, 6, 10), longer=(0.5, 1, 2), rows=(500, 3000), law=TRUE
):
  """Sizes of five dials, each for lengths, experts, and rows."""
  rng = np.random.default_rng(0)
  found = []
  for n, active in enumerate((2e5, 8e5, 3e6, 1.2e7, 5e7)):
    for ratio in ratios:
      for times in longer:
        point = {'active': active, 'total': ratio * active, 'dial': n}
        point |= {'tokens': 20 * times * active, 'longer': times, 'experts': 0}
        point['bytes'] = (1 + n / 2) * point['tokens']
        point['context'] = rows[len(found) % len(rows)]
        point['bpb'] = dial_law.predict(law, point)
        point['bpb'] *= math.exp(noise * rng.standard_normal())
        found.append(point)
  return found


def test_constants_of_exact_losses_are_recovered():
  found = dial_law.fit(points())
  assert found == {k: pytest.approx(v, rel=0.02) for k, v in TRUE.items()}


def test_a_wrong_exponent_is_seen():
  """Sibling: what the fit gives is that of the losses and of no others."""
  other = dial_law.fit(points(law={**TRUE, 'a': 0.5, 'A': 700.0}))
  assert other['a'] == pytest.approx(0.5, rel=0.05)
  wrong = {**dial_law.fit(points()), 'a': 0.36}
  off = [dial_law.predict(wrong, p) / p['bpb'] - 1 for p in points()]
  assert max(map(abs, off)) > 0.05


def test_with_noise_and_outliers_the_largest_is_predicted():
  noisy = points(noise=0.002)
  noisy[7]['bpb'] *= 1.2  # A run that went wrong.
  summary = dial_law.summary(noisy)
  assert abs(summary['held_out']['error']) < 0.01
  assert summary['held_out']['dial'] == 4
  assert abs(summary['left_out'][7]) > 0.1
  assert np.median(np.abs(summary['left_out'])) < 0.005
  found = summary['constants']
  assert found['a'] == pytest.approx(TRUE['a'], abs=0.1)
  assert found['b'] == pytest.approx(TRUE['b'], abs=0.1)


def test_a_largest_run_off_the_law_is_seen():
  """Sibling: the prediction does not know what it predicts."""
  found = points()
  found[-1]['bpb'] *= 1.1
  summary = dial_law.summary(found)
  assert summary['held_out']['error'] == pytest.approx(1 / 1.1 - 1, abs=0.01)


def test_without_other_ratios_experts_count_nothing():
  found = dial_law.fit(points(ratios=(10,)))
  assert found['g'] == 0
  assert found['a'] == pytest.approx(TRUE['a'], rel=0.02)


def test_without_other_rows_context_counts_nothing():
  found = dial_law.fit(points(rows=(1024,)))
  assert found['c'] == 0
  assert found['a'] == pytest.approx(TRUE['a'], rel=0.02)


@pytest.mark.parametrize(
  'some, sentence',
  [
    (points(longer=(1,), ratios=(10,), rows=(9,)), '5 sizes and lengths'),
    (points()[:7], '7 sizes and lengths cannot tell 7 constants'),
    (
      [{**p, 'bytes': 20 * p['active']} for p in points()],
      'as much text for a parameter',
    ),
  ],
)
def test_what_cannot_be_told_is_said(some, sentence):
  with pytest.raises(ValueError, match=sentence):
    dial_law.fit(some)


def test_what_is_shipped_is_the_fit_of_the_runs():
  shipped = law_lib.Law.read()
  [dials] = re.findall(r'--dials=([\d,]+)', shipped.about['command'])
  wanted = {int(n) for n in dials.split(',')}
  rows = sweep.read(record.RESULTS / 'dial.jsonl')
  points = dial.fit([r for r in rows if r['dial'] in wanted])['points']
  found = dial_law.fit(points)
  size = points[0]
  assert shipped.loss(size) == pytest.approx(
    dial_law.predict(found, size), 1e-3
  )
  largest = max(points, key=lambda p: p['active'] * p['tokens'])
  assert shipped.loss(largest) == pytest.approx(largest['bpb'], 0.02)
  assert shipped.beyond(largest) == {}
