# SPDX-License-Identifier: Apache-2.0
"""The pattern of sources of a mixture."""

from fractions import Fraction

import numpy as np
import pytest

from pipelines.order import quotas


def made(*weights):
  return quotas.Quotas([Fraction(weight) for weight in weights])


def sources(mixture, count):
  return mixture.at(np.arange(count))[0].tolist()


def test_pattern_by_hand():
  mixture = made('0.75', '0.25')
  assert mixture.quotas == (3, 1)
  assert sources(mixture, 8) == [0, 0, 1, 0, 0, 0, 1, 0]
  assert mixture.at(np.array([3, 6]))[1].tolist() == [2, 1]


@pytest.mark.parametrize(
  'weights',
  [('0.7', '0.2', '0.1'), ('0.86', '0.11', '0.03'), ('1', '1'), ('3',)],
)
def test_quotas_are_exact_and_evenly_spread(weights):
  mixture = made(*weights)
  shares = [Fraction(w) / sum(map(Fraction, weights)) for w in weights]
  assert mixture.period <= 100
  found = np.array(sources(mixture, 3 * mixture.period))
  for n in range(len(found) + 1):
    counts = [int((found[:n] == i).sum()) for i in range(len(weights))]
    assert mixture.counts(n) == counts
    for count, share in zip(counts, shares, strict=True):
      assert abs(count - n * share) <= len(weights) / 2
  assert mixture.counts(mixture.period) == [s * mixture.period for s in shares]


def test_each_row_says_how_many_of_its_source_came_before():
  mixture = made('0.5', '0.3', '0.2')
  which, nth = mixture.at(np.arange(40))
  for source in range(3):
    assert nth[which == source].tolist() == list(range((which == source).sum()))


def test_source_without_weight_has_no_rows():
  assert set(sources(made(1, 0, 2), 9)) == {0, 2}


def test_long_periods_are_brought_down_by_largest_remainders():
  mixture = made('0.33333333', '0.66666666', '0.00000001')
  assert mixture.period == quotas.MOST_ROWS
  # 21,845.33, 43,690.67 and 0.0007 of 65,536; what has a weight keeps a row.
  assert mixture.quotas == (21_845, 43_690, 1)


def test_many_tiny_weights_keep_a_row_each():
  mixture = made(10**9, *[1] * 50)
  assert mixture.quotas == (quotas.MOST_ROWS - 50, *[1] * 50)


@pytest.mark.parametrize('weights', [(), (0, 0), (1, -1)])
def test_what_is_no_mixture_is_refused(weights):
  with pytest.raises(ValueError, match='no mixture'):
    made(*weights)
