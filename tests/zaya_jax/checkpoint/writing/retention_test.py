# SPDX-License-Identifier: Apache-2.0
"""Which checkpoints stay."""

import math

import pytest

from zaya_jax import config as config_lib
from zaya_jax.checkpoint.writing import retention


def kept(bpb, **changes):
  """The steps that stay of checkpoints 1, 2, ...; None: not evaluated."""
  metrics = {
    step: {} if value is None else {'val/bpb': value}
    for step, value in enumerate(bpb, 1)
  }
  config = config_lib.CheckpointConfig(**{'keep': 1, **changes})
  return retention.kept(metrics, config)


@pytest.mark.parametrize(
  'bpb, best',
  [
    ([1.0, 2.0, 3.0], 1),
    ([2.0, 1.0, None], 2),
    ([1.0, 1.0, 3.0], 2),  # Of equals the newest.
    ([1.0, 1.0 - 1e-9, 1.0, 3.0], 2),
    ([None, 0.0, 1.0], 2),
    ([math.nan, 5.0, math.inf, 6.0], 2),
  ],
)
def test_the_best_and_the_newest_stay(bpb, best):
  assert kept(bpb) == {best, len(bpb)}


def test_without_an_evaluation_the_newest_stay():
  assert kept([None, None, math.nan], keep=2) == {2, 3}


def test_multiples_stay_too():
  assert kept([None] * 9, keep=1, keep_every=4) == {4, 8, 9}
