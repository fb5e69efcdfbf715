# SPDX-License-Identifier: Apache-2.0
"""Permutations without a table, and how random they look."""

import numpy as np
import pytest

from pipelines.order import shuffle


def whole(size, *of, rounds=shuffle.ROUNDS):
  keys = shuffle.key(*of)[:rounds, None]
  return shuffle.permute(np.arange(size), size, keys)


@pytest.mark.parametrize(
  'size', [1, 2, 3, 4, 5, 16, 17, 100, 4097, 65_536, 65_537, 100_003]
)
def test_each_place_has_another_number(size):
  assert sorted(whole(size, 5).tolist()) == list(range(size))


def test_places_are_independent_of_those_asked_with_them():
  sizes = np.array([7, 1000, 65_537, 2**40, 1])
  places = np.array([6, 999, 65_536, 2**39, 0])
  keys = np.stack([shuffle.key(3, i) for i in range(5)], axis=1)
  together = shuffle.permute(places, sizes, keys)
  alone = [
    shuffle.permute(places[i : i + 1], sizes[i], keys[:, i : i + 1])[0]
    for i in range(5)
  ]
  assert together.tolist() == alone
  assert (together < sizes).all()


def correlation(numbers, lag):
  return np.corrcoef(numbers[:-lag], numbers[lag:])[0, 1]


# At a lag of 316, half of the network has the same input.
@pytest.mark.parametrize('size, lag', [(1000, 1), (100_003, 1), (100_003, 316)])
def test_neighbours_are_not_related(size, lag):
  found = [correlation(whole(size, 2, seed), lag) for seed in range(10)]
  # Ten independent ones have this deviation: four of them.
  assert abs(np.mean(found)) < 4 / np.sqrt(10 * size)


def test_too_few_rounds_are_seen():
  assert abs(correlation(whole(100_003, 2, rounds=2), 316)) > 0.9


def test_all_permutations_of_few_are_about_equally_frequent():
  counts = {}
  for seed in range(2400):
    order = tuple(whole(4, seed).tolist())
    counts[order] = counts.get(order, 0) + 1
  assert len(counts) == 24
  # chi-square with 23 degrees of freedom: 1 in 1,000 is above 49.7
  assert sum((n - 100) ** 2 / 100 for n in counts.values()) < 49.7


def test_keys_of_neighbouring_seeds_are_unrelated():
  one, other = (whole(10_007, seed) for seed in (5, 6))
  assert abs(np.corrcoef(one, other)[0, 1]) < 0.04
  assert (one == other).sum() < 10
