# SPDX-License-Identifier: Apache-2.0
"""The benchmark of layers with a tiny model."""

import json
import sys

import pytest

from benchmarks import layers
from tests.support import tiny_case


def test_a_layer_is_the_difference_and_the_rest_is_the_rest():
  rows = [
    {'way': 'a', 'layers': 2, 'seconds': 0.5},
    {'way': 'a', 'layers': 4, 'seconds': 0.7},
    {'way': 'b', 'layers': 2, 'failed': 'no memory'},
  ]
  (found,) = layers.summary(rows, tokens=8200)
  assert found['layer_ms'] == pytest.approx(100)
  assert found['rest_ms'] == pytest.approx(300)
  assert found['tokens_per_s_of_40_layers'] == pytest.approx(8200 / 4.3)


@pytest.mark.long
def test_rows_are_those_of_the_trainer(tmp_path, monkeypatch):
  output = tmp_path / 'layers.json'
  flags = ['--rows=2', '--length=32', '--repeats=2', '--layers=1,2']
  monkeypatch.setenv('JAX_PLATFORMS', 'cpu')
  monkeypatch.setattr(
    sys,
    'argv',
    ['layers', *flags, '--no_peer', f'--output={output}', *tiny_case.FLAGS],
  )
  layers.main()
  found = json.loads(output.read_text())
  assert [row['layers'] for row in found['rows']] == [1, 1, 2, 2]
  assert found['rows'][0]['engines']['experts'] == 'xla'
  ways = [row['way'] for row in found['summary']]
  assert ways == ['zaya_jax', 'zaya_jax, cast before']
