# SPDX-License-Identifier: Apache-2.0
"""Seconds by what was measured, on machines that are made up."""

import pytest

from tests.support import curves
from zaya_jax.bench.sweep import record
from zaya_jax.plan.cost import estimate, rates
from zaya_jax.runtime import chips

CHIP = chips.Chip(
  name='X', peak=200.0, achievable=0.5, memory=1.0, bandwidth=10.0, link=1.0
)


def point(case, size, work, seconds, spread=0.0):
  """A point with quartiles that are as far away as `spread`."""
  return record.Point(
    case=case, devices=1, size=size, work=work, seconds=seconds,
    low=seconds * (1 - spread), high=seconds * (1 + spread), samples=1, calls=1,
  )  # fmt: skip


def test_without_measurements_the_data_sheet_counts():
  found = rates.Rates(CHIP).roofline(1000.0, 20.0)
  assert found.seconds == 10.0  # 1,000 FLOPs at half of 200.
  assert (found.low, found.high) == pytest.approx((7.0, 13.0))
  assert found.source == estimate.SHEET
  assert rates.Rates(CHIP).operation('experts', 1.0, 1.0) is None


def test_products_take_the_rate_of_shapes_like_them():
  known = rates.Rates(CHIP, curves.machine(gemm=[
    point('1024x1024x1024 bfloat16', 1, 100.0, 2.0),
    point('4096x4096x4096 bfloat16', 1, 100.0, 1.0),
    point('typical bfloat16', 1, 100.0, 4.0),
  ]))  # fmt: skip
  one = known.product(100.0, (1024, 1024, 1024))
  assert one.seconds == pytest.approx(2.0)
  assert known.product(100.0, (4096, 4096, 4096)).seconds == pytest.approx(1.0)
  between = known.product(100.0, (1024, 2048, 1024)).seconds
  assert 1.0 < between <= 2.0
  # No shape is near: the typical rate, and the best as an error.
  far = known.product(100.0, (64, 64, 64))
  assert far.seconds == pytest.approx(4.0)
  assert far.low == pytest.approx(0.97)
  assert far.source == estimate.MEASURED


def test_an_operation_keeps_its_share_of_the_roofline():
  # 100 FLOPs take 1 s by the chip, and took 2; 30 bytes 3 s, and took 4.
  known = rates.Rates(CHIP, curves.machine(operations=[
    point('experts a both', 0, 100.0, 2.0, spread=0.1),
    point('experts b both', 0, 100.0, 5.0),
    point('merge a both', 30, 0.0, 4.0),
    point('merge a forward', 30, 0.0, 6.0),
  ]))  # fmt: skip
  found = known.operation('experts', 400.0, 1.0, calls=4)
  assert found.seconds == pytest.approx(8.0)  # Of the faster engine.
  assert found.low == pytest.approx(8.0 * 0.9 * 0.97)
  assert found.high == pytest.approx(8.0 * 1.1 * 1.03)
  named = known.operation('experts', 400.0, 1.0, calls=4, engine='b')
  assert named.seconds == pytest.approx(20.0)
  # Four times as large a call: the same share, and less is sure.
  wide = known.operation('experts', 400.0, 1.0)
  assert wide.seconds == pytest.approx(8.0)
  assert wide.high > found.high
  assert known.operation('merge', 0.0, 60.0).seconds == pytest.approx(8.0)
  forward = known.operation('merge', 0.0, 60.0, which='forward')
  assert forward.seconds == pytest.approx(12.0)


def test_a_formula_takes_measured_rates():
  known = rates.Rates(
    CHIP,
    curves.machine(memory=[point('triad', 1, 5.0, 1.0)]),
    efficiency=0.5,
  )
  found = known.roofline(1.0, 100.0)
  assert found.seconds == pytest.approx(2 * 20.0)
  assert found.source == estimate.RATES
  assert found.low < 0.85 * found.seconds < 1.2 * found.seconds < found.high


def test_errors_add_up_and_sources_are_named():
  one = estimate.Estimate(seconds=1, low=0.5, high=2, source=estimate.MEASURED)
  both = one + estimate.sheet(1.0) * 2
  assert (both.seconds, both.low, both.high) == pytest.approx((3, 1.9, 4.6))
  assert both.source == 'measured + data sheet'
