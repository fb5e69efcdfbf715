# SPDX-License-Identifier: Apache-2.0
"""How many tokens the balancing bias is found by."""

import pytest

from zaya_jax import config as config_lib
from zaya_jax.optim import sample


@pytest.mark.parametrize(
  'rows, length, every',
  [(8, 128, 1), (64, 1024, 16), (4096, 4096, 256)],
)
def test_sample_is_of_thousands_and_divides_a_row(rows, length, every):
  data = config_lib.DataConfig(batch_size=rows, seq_len=length)
  assert sample.every(config_lib.OptimConfig(), data) == every
  for optim in ({'balance': 'adam'}, {'balance_lr': 0.0}):
    optim = config_lib.OptimConfig(**optim)
    assert sample.every(optim, data) == 0
