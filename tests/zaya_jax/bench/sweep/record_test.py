# SPDX-License-Identifier: Apache-2.0
"""Rates of points, and times between them."""

import pytest

from tests.support import curves
from zaya_jax.bench.sweep import record


def test_rates_count_work_and_size():
  found = curves.point(1000, 2.0, work=1750)
  assert (found.rate, found.algorithm_rate) == (875.0, 500.0)


def test_curve_is_of_one_case_on_one_number_of_devices():
  points = [
    curves.point(4, 1.0),
    curves.point(1, 1.0),
    curves.point(2, 1.0, devices=4),
    curves.point(3, 1.0, case='permute'),
  ]
  assert [p.size for p in record.curve(points, 'all-reduce', 8)] == [1, 4]


@pytest.mark.parametrize(
  'size, seconds',
  [
    (1, 1e-5),  # The latency.
    (1000, 1e-5),
    (2000, 2e-5),  # On the power law between.
    (4000, 4e-5),
    (64_000, 64e-5),
    (128_000, 128e-5),  # At the last rate.
  ],
)
def test_time_between_points(size, seconds):
  curve = [
    curves.point(1000, 1e-5),
    curves.point(4000, 4e-5),
    curves.point(64_000, 64e-5),
  ]
  assert record.seconds(curve, size) == pytest.approx(seconds)
