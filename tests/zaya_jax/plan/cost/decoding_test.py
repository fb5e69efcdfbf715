# SPDX-License-Identifier: Apache-2.0
"""A token's time against one that was measured."""

import json
import pathlib

import pytest

from tests.support import released
from zaya_jax.bench.machine import known
from zaya_jax.plan.cost import decoding, rates
from zaya_jax.runtime import chips

RESULTS = pathlib.Path(__file__).parents[4] / 'benchmarks' / 'results'


@pytest.mark.parametrize('context', [1024, 32768])
def test_eight_layers_on_an_h200_are_as_measured(context):
  rows = json.loads((RESULTS / 'decode.json').read_text())['rows']
  (row,) = [
    r for r in rows if (r['batch'], r['context']) == (1, context)
  ]  # fmt: skip
  model = released.parse('--model.num_layers=8').model
  speed = rates.Rates(chips.CHIPS['h200'], known.read('h200'))
  found = decoding.token(model, speed, context)
  assert found.low < 1 / row['tokens_per_second'] < found.high
  deep = released.parse('--model.num_layers=40').model
  assert decoding.token(deep, speed, context).low > found.high


def test_bytes_and_layers_by_hand():
  model = released.parse().model
  speed = rates.Rates(chips.CHIPS['mi300x'])
  read = 2 * (753_608_528 + 262_272 * 2048) + 40 * 2 * 2 * 256 * 4096
  assert decoding.token(model, speed, 4096).seconds == pytest.approx(
    read / 4.33e12 + 40 * 46e-6
  )
