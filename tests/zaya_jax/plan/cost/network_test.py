# SPDX-License-Identifier: Apache-2.0
"""Collectives by measured curves, on machines that are formulas."""

import pytest

from tests.support import curves
from zaya_jax.bench.machine import known
from zaya_jax.plan.cost import estimate, network
from zaya_jax.runtime import chips

MESH, SWITCH = chips.CHIPS['mi300x'], chips.CHIPS['h100']


def _curve(kind, devices, latency, rate):
  """Of a message of size s: latency + s / rate."""
  return [
    curves.point(4**k, latency + 4**k / rate, kind, devices)
    for k in range(5, 17)
  ]


def _seconds(chip, machine, kind, size, local, total, count=1):
  group = network.Group(size, local)
  return network.seconds(chip, machine, kind, group, count, total)


def test_a_measured_group_takes_what_it_took():
  machine = curves.machine(collectives=_curve('all-gather', 8, 1e-5, 1e11))
  found = _seconds(SWITCH, machine, 'all-gather', 8, 8, 3 * 4**14, count=3)
  assert found.seconds == pytest.approx(3 * (1e-5 + 4**14 / 1e11))
  assert found.low == found.seconds == found.high
  assert found.source == estimate.MEASURED


def test_a_smaller_group_has_its_share_of_links():
  """Where each pair has a link, two devices have one of seven."""
  machine = curves.machine(collectives=_curve('all-gather', 8, 0.0, 1e11))
  eight, two = (
    _seconds(MESH, machine, 'all-gather', n, n, 1e9).seconds for n in (8, 2)
  )
  assert two / eight == pytest.approx(7 * (1 / 2) / (7 / 8))
  # Through a switch both have the same rate.
  machine = curves.machine(collectives=_curve('all-gather', 8, 0.0, 1e11))
  eight, two = (
    _seconds(SWITCH, machine, 'all-gather', n, n, 1e9).seconds for n in (8, 2)
  )
  assert two / eight == pytest.approx((1 / 2) / (7 / 8))


def test_another_collective_stands_in_with_more_error():
  machine = curves.machine(collectives=_curve('all-reduce', 8, 0.0, 1e11))
  sum_, half = (
    _seconds(SWITCH, machine, kind, 8, 8, 1e9)
    for kind in ('all-reduce', 'reduce-scatter')
  )
  assert half.seconds == pytest.approx(sum_.seconds / 2)
  assert half.high / half.seconds > sum_.high / sum_.seconds
  # Of an all-to-all nothing is known by that.
  other = _seconds(SWITCH, machine, 'all-to-all', 8, 8, 1e9)
  assert other.source == estimate.SHEET


def test_nodes_are_not_guessed_from_within_one():
  machine = curves.machine(collectives=_curve('all-reduce', 8, 0.0, 1e11))
  found = _seconds(SWITCH, machine, 'all-reduce', 16, 8, 1e9)
  assert found == _seconds(SWITCH, None, 'all-reduce', 16, 8, 1e9)


def test_mi300x_by_hand():
  machine = known.read('mi300x')
  # 8 GiB on 16: 330 GB/s of bus bandwidth; on 1,024 six halvings more.
  size = 2.0**33
  took = lambda n: _seconds(MESH, machine, 'all-gather', n, 8, size).seconds
  assert took(16) == pytest.approx(15 / 16 * size / 330e9)
  # Its links are busy as long with a message that is 6 % larger on 16.
  more = 1023 / 1024 * size / 330e9 + 6 * network.LATENCY
  assert took(1024) == pytest.approx(more, rel=0.01)
  # Of 64 MiB the rate falls as within a node: 274 of 318 GB/s.
  small = _seconds(MESH, machine, 'all-gather', 16, 8, 2.0**26)
  assert small.seconds == pytest.approx(15 / 16 * 2**26 / (330e9 * 274 / 318))


@pytest.mark.parametrize('case, rate', curves.MACHINES.items())
def test_saturation_is_that_of_the_curve(case, rate):
  if case == 'falls again':
    return
  points = [
    curves.point(2**k, 2**k / rate(2**k), 'all-reduce') for k in range(10, 31)
  ]
  machine = curves.machine(collectives=points)
  found = network.saturation(
    SWITCH, machine, 'reduce-scatter', network.Group(8, 8)
  )
  assert found / 2 < curves.brute_force(rate) <= found
  none = curves.machine(memory=points)
  assert not network.saturation(SWITCH, none, 'permute', network.Group(8, 8))
