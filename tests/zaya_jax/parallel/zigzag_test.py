# SPDX-License-Identifier: Apache-2.0
"""Every row has one place, and every device the same work."""

import numpy as np
import pytest

from tests.support import rows
from zaya_jax import config as config_lib
from zaya_jax.parallel import zigzag as zigzag_lib


def test_zigzag_of_two_devices_by_hand():
  assert zigzag_lib.order(8, 2).tolist() == [0, 1, 6, 7, 2, 3, 4, 5]


@pytest.mark.parametrize('n', [1, 2, 4, 8])
def test_every_row_has_one_place(n):
  tokens = np.arange(2 * 48).reshape(2, 48)
  batch = {'tokens': tokens, 'features': np.stack([tokens, -tokens], -1)}
  there = zigzag_lib.divide(batch, n)
  assert sorted(there['tokens'][0]) == list(range(48))
  back = rows.restore(there, n)
  for name, array in batch.items():
    np.testing.assert_array_equal(back[name], array)


@pytest.mark.parametrize('n', [2, 4, 8])
def test_zigzag_divides_the_pairs_of_causal_attention_equally(n):
  pairs = lambda order: (order + 1).reshape(n, -1).sum(1)
  assert len(set(pairs(zigzag_lib.order(64, n)))) == 1
  assert len(set(pairs(np.arange(64)))) == n


def test_lengths_that_do_not_divide_are_named():
  with pytest.raises(config_lib.UsageError, match='--data.seq_len=12 is no'):
    zigzag_lib.order(12, 4)


@pytest.mark.parametrize('look_back', [0, 3])
def test_chunks_may_be_as_short_as_the_look_back(look_back):
  zigzag_lib.check(4 * max(look_back, 1), 2, look_back)


def test_chunks_shorter_than_the_look_back_name_the_least_length():
  with pytest.raises(config_lib.UsageError, match='at least 12 tokens'):
    zigzag_lib.check(8, 2, 3)
