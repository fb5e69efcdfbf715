# SPDX-License-Identifier: Apache-2.0
"""The search for the knee, against all sizes of made-up machines."""

import itertools

import pytest

from tests.support import curves
from zaya_jax.bench.sweep import saturation


def find(rate, smallest=2**10, largest=2**30, cached=False):
  """What is measured, size by size, and what comes out."""
  rates = {
    size: rate(size)
    for size in saturation.ends_first(saturation.ladder(smallest, largest))
  }
  while size := saturation.next_size(rates, cached):
    rates[size] = rate(size)
  return saturation.saturated(rates, cached), rates


@pytest.mark.parametrize('name', curves.MACHINES)
def test_knee_is_that_of_all_sizes_within_a_tenth(name):
  found, rates = find(curves.MACHINES[name])
  assert found == pytest.approx(
    curves.brute_force(curves.MACHINES[name]), rel=0.1
  )
  assert len(rates) < 20


def test_coarse_search_would_miss_it(monkeypatch):
  monkeypatch.setattr(saturation, 'FINEST', 4.0)
  off = [
    find(rate)[0] / curves.brute_force(rate)
    for rate in curves.MACHINES.values()
  ]
  assert max(off) > 1.1


def test_knee_of_latency_and_bandwidth_is_nine_latencies():
  # s / (l + s / b) = 0.9 b where s = 9 l b; the best is nearly b.
  found, _ = find(curves.MACHINES['latency and bandwidth'])
  assert found == pytest.approx(9 * 20e-6 * 400e9, rel=0.15)


def test_cache_does_not_move_the_knee_of_the_memory():
  # 1 us a call, a cache of 16 MiB that is ten times as fast as the memory.
  rate = lambda size: (
    size / (1e-6 + min(size, 2**24) / 4e13 + max(0, size - 2**24) / 4e12)
  )
  found, rates = find(rate, cached=True)
  assert saturation.limit(rates, cached=True) == rate(2**30)
  sizes = (round(2**10 * 1.003**k) for k in range(4000))
  enough = 0.9 * rate(2**30)
  knee = next(size for size in sizes if rate(size) >= enough)
  assert found == pytest.approx(knee, rel=0.1)
  best, _ = find(rate)
  assert best > 2 * knee  # As if only the cache counted.


def test_flat_curve_saturates_at_its_smallest_size():
  found, rates = find(lambda size: 1.0)
  assert found == 2**10 and len(rates) == 11


def test_ladder_has_both_ends_and_powers_of_four_between():
  assert saturation.ladder(1024, 2**14) == [1024, 4096, 16384]
  assert saturation.ladder(1024, 20000) == [1024, 4096, 16384, 20000]
  assert saturation.ladder(1024, 100) == [1024]


@pytest.mark.parametrize('count', range(1, 14))
def test_ends_come_first_and_everything_once(count):
  sizes = list(range(count))
  found = list(saturation.ends_first(sizes))
  assert sorted(found) == sizes and found[:2] == [0, count - 1][:count]


def test_gaps_are_halved():
  sizes = list(range(17))
  order = saturation.ends_first(sizes)
  assert list(itertools.islice(order, 5)) == [0, 16, 8, 4, 12]
