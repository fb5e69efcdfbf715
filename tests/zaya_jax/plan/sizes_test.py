# SPDX-License-Identifier: Apache-2.0
"""--plan.parameters: shapes within their budgets, none of them beaten."""

import functools
import itertools

import pytest

from zaya_jax import config as config_lib
from zaya_jax.model import flops
from zaya_jax.plan import sizes

WORDS = (
  '--plan.chip=h200', '--plan.devices=1', '--data.batch_size=4',
  '--data.seq_len=1024', '--model.vocab_size=8192', '--model.num_layers=16',
  '--model.d_model=512', '--model.num_heads=2', '--model.num_kv_heads=1',
  '--model.head_dim=128', '--model.num_experts=16', '--model.d_expert=512',
  '--optim.newton_schulz_gram=false', '--optim.accumulation=1',
)  # fmt: skip


@functools.cache
def _find(*words):
  return sizes.find(config_lib.Config.parse([*WORDS, *words]))


def test_shapes_keep_to_the_budgets():
  found = _find('--plan.parameters=400M')
  assert found['rows'] and found['fit'] <= found['tried']
  for row in found['rows']:
    config = config_lib.Config.parse([*WORDS, *row['flags'].split()])
    count = flops.parameters(config.model)
    assert count.total == row['parameters'] <= 400e6
    assert count.total >= 0.95 * 400e6
    assert count.active == row['active'] >= found['active']


def test_no_row_is_slower_at_both():
  rows = _find('--plan.parameters=400M')['rows']
  for one, two in itertools.permutations(rows, 2):
    assert (
      one['tokens_per_second'] > two['tokens_per_second']
      or one['decode_ms'] < two['decode_ms']
    )


def test_latency_shuts_out_what_decodes_too_slowly():
  rows = _find('--plan.parameters=400M')['rows']
  slowest = max(row['decode_ms'] for row in rows)
  limit = f'--plan.latency_ms={0.99 * slowest}'
  fewer = _find('--plan.parameters=400M', limit)['rows']
  assert max(row['decode_ms'] for row in fewer) < slowest
  with pytest.raises(config_lib.UsageError, match='within --plan.latency_ms'):
    _find('--plan.parameters=400M', '--plan.latency_ms=0.001')


@pytest.mark.parametrize('word', ['x', '0', '-3'])
def test_a_budget_is_a_number(word):
  with pytest.raises(config_lib.UsageError, match='must be a whole number'):
    _find(f'--plan.parameters={word}')
