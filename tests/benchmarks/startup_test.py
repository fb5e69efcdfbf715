# SPDX-License-Identifier: Apache-2.0
"""Starts of a tiny model: the second reads what the first has kept."""

import json
import sys

import pytest

from benchmarks import startup
from tests.support import tiny_case


class Made:
  """Lowered and compiled at once."""

  def lower(self, *arguments):
    return self

  def compile(self):
    return 'program'


def test_phases_are_clocked():
  row = {}
  assert startup._Clocked(Made(), row).lower(1, 2).compile() == 'program'
  assert sorted(row) == ['compile_s', 'lower_s']


@pytest.mark.long
def test_second_start_is_told_apart(tmp_path, monkeypatch):
  pytest.importorskip('flatbuffers')
  output = tmp_path / 'startup.json'
  flags = [*tiny_case.FLAGS, '--data.batch_size=2', '--data.seq_len=16']
  args = ['--preset=quickstart', '--steps=1', f'--output={output}']
  monkeypatch.setattr(sys, 'argv', ['startup', *args, *flags])
  startup.main()
  first, second = json.loads(output.read_text())['rows']
  assert first['notes'] == []
  assert 'the step was lowered before' in second['notes'][0]
  assert second['lower_s'] < first['lower_s']
  assert first['loss'] == second['loss']
