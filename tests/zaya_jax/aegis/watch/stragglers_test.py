# SPDX-License-Identifier: Apache-2.0
"""Slow ranks are named, and nobody is where all are alike."""

import random

import pytest

from zaya_jax.aegis.watch import stragglers


def windows(shares, count, *, seed=0, ranks_per_node=2):
  """What `count` windows find, of ranks that are late for some shares."""
  chance = random.Random(seed)
  finder = stragglers.Stragglers()
  looks = dict.fromkeys(range(len(shares)), (0, 0))
  found = []
  for _ in range(50 * count + 1):
    reports = {}
    for rank, share in enumerate(shares):
      all_, late = looks[rank]
      looks[rank] = all_ + 1, late + (chance.random() < share)
      reports.setdefault(f'n{rank // ranks_per_node}', []).append(
        {'rank': rank, 'looks': looks[rank][0], 'late': looks[rank][1]}
      )
    if slow := finder.find(reports):
      found.append((slow['node'], slow['rank']))
  return found


@pytest.mark.parametrize('ranks', [2, 8, 64])
@pytest.mark.parametrize('slow', [0.5, 0.9])  # Twice, ten times as slow.
def test_rank_that_others_wait_for_is_named_in_every_window(ranks, slow):
  shares = [0.03] * ranks
  shares[1] = slow
  assert windows(shares, 10) == [('n0', 1)] * 10


@pytest.mark.parametrize(
  'usual, count', [(0.0, 10), (0.03, 1000), (0.5, 100), (0.95, 100)]
)
def test_windows_without_a_straggler_name_nobody(usual, count):
  # At one half, chance alone makes one of many look late in a few.
  found = windows([usual] * 8, count)
  assert len(found) <= (0.02 * count if usual == 0.5 else 0)


def test_one_rank_has_nobody_to_wait_for_it():
  assert not windows([0.9], 10)


def test_next_generation_begins_anew():
  finder = stragglers.Stragglers()

  def at(looks, late):
    ranks = [{'rank': i, 'looks': looks, 'late': late * i} for i in range(2)]
    return finder.find({'a': ranks})

  assert at(0, 0) is None
  assert at(50, 0) is None
  assert at(5, 5) is None  # Counted from nothing again.
  assert at(54, 54) is None
  assert at(55, 55)['rank'] == 1


def test_rank_without_a_new_look_ends_no_window():
  finder = stragglers.Stragglers()

  def at(*looks):
    ranks = enumerate(looks)
    found = [{'rank': i, 'looks': n, 'late': n * i} for i, n in ranks]
    return finder.find({'a': found})

  assert at(7, 7) is None
  assert at(7, 40) is None  # The report of rank 0 is still the last one.
  assert at(57, 60)['rank'] == 1
