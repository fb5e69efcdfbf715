# SPDX-License-Identifier: Apache-2.0

import numpy as np

from benchmarks import data_order


def test_random_order_is_told_from_one_that_is_not():
  random = np.random.default_rng(0).permutation(20_000).__getitem__
  good = data_order.measure(random, 20_000, 16, 400)
  assert abs(good['lag_1']) < 0.06 and 0.7 < good['variance_ratio'] < 1.3
  bad = data_order.measure(lambda places: places, 20_000, 16, 400)
  assert bad['lag_1'] > 0.9 and bad['variance_ratio'] > 10


def test_our_order_and_grains_are_permutations():
  for shuffle in (data_order.ours(2_000), data_order.grains(2_000, 4)):
    assert sorted(shuffle(np.arange(2_000))) == list(range(2_000))
