# SPDX-License-Identifier: Apache-2.0
"""The ladder of presets, with a tiny model instead of them."""

import json
import sys

import pytest

from benchmarks import ladder
from tests.support import tiny_case
from zaya_jax.model import flops


@pytest.mark.parametrize('name', ['small', 'medium', 'large'])
def test_peer_has_as_many_active_parameters(name):
  config = ladder.parse(name, [])
  peer = ladder.peer_of(config)
  active = flops.parameters(config.model).active
  each = 12 * peer['width'] ** 2
  assert abs(peer['layers'] * each - active) <= each / 2
  assert config.data.batch_size % peer['parts'] == 0


def test_flops_of_the_peer_by_hand():
  peer = {'layers': 2, 'width': 3, 'vocab': 5, 'length': 4}
  weights = 2 * 12 * 9 + 5 * 3
  # Scores and the sum of values, over 4 x 4 pairs, of which half count.
  attention = 2 * 2 * (2 * 4 * 4 * 3) / 2 / 4
  assert ladder.dense_flops(peer) == 3 * (2 * weights + attention)


def test_table_has_a_line_for_each_and_says_what_failed():
  row = {
    'preset': 'small', 'program': 'zaya_jax', 'active': 22e6, 'mfu': 0.25,
    'tokens_per_s': 1e6, 'step_s': 0.065, 'peak_bytes': 25e9,
    'launches': 2000, 'compile_s': 50.0,
  }  # fmt: skip
  failed = {'preset': 'small', 'program': 'dense GPT', 'error': 'no memory'}
  head, ours, theirs = ladder.table([row, failed]).splitlines()
  assert head.split()[:3] == ['preset', 'program', 'active']
  assert ours.split()[2:5] == ['22.0M', '1,000,000', '25.0%']
  assert theirs.endswith('no memory')


@pytest.mark.long
def test_a_preset_is_measured_as_the_trainer_runs_it(tmp_path, monkeypatch):
  output = tmp_path / 'ladder.json'
  args = '--presets=small --steps=1 --warm_up=1'.split()
  flags = [*tiny_case.FLAGS, '--data.batch_size=2', '--data.seq_len=16']
  monkeypatch.setenv('JAX_PLATFORMS', 'cpu')
  monkeypatch.setattr(
    sys, 'argv', ['ladder', *args, f'--output={output}', *flags]
  )
  ladder.main()
  ours, theirs = json.loads(output.read_text())['rows']
  assert ours['tokens_per_step'] == 32
  assert '--model.remat: auto -> none' in ours['chosen']
  assert theirs['shape']['layers'] >= 1  # Measured where PyTorch is.
