# SPDX-License-Identifier: Apache-2.0
"""The newest, the best and every k-th checkpoint stay."""

import math

import pytest

from zaya_jax import config as config_lib
from zaya_jax.checkpoint.writing import retention


def kept(values, **settings):
  metrics = {
    step: {} if value is None else {'val/bpb': value}
    for step, value in values.items()
  }
  config = config_lib.CheckpointConfig(**settings)
  return sorted(retention.kept(metrics, config))


@pytest.mark.parametrize(
  'values, settings, expected',
  [
    ({}, {}, []),
    ({1: None, 2: None, 3: None}, {'keep': 2}, [2, 3]),
    ({1: None, 2: None, 3: None}, {'keep': 9}, [1, 2, 3]),
    ({1: 5.0, 2: 1.0, 3: 4.0, 4: 3.0}, {'keep': 1}, [2, 4]),
    # Of two that are as good, the later one has seen more.
    ({1: 1.0, 2: 1.0, 3: 2.0, 4: 2.0}, {'keep': 1}, [2, 4]),
    ({1: math.nan, 2: math.inf, 3: 9.0, 4: None}, {'keep': 1}, [3, 4]),
    ({1: math.nan, 2: None, 3: None}, {'keep': 1}, [3]),
    ({s: None for s in range(1, 9)}, {'keep': 1, 'keep_every': 3}, [3, 6, 8]),
    ({0: None, 1: None, 2: None}, {'keep': 1, 'keep_every': 2}, [0, 2]),
  ],
)
def test_what_stays(values, settings, expected):
  assert kept(values, **settings) == expected
