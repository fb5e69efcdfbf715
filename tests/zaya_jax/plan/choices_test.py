# SPDX-License-Identifier: Apache-2.0
"""The command lines of --plan.search and --plan.parameters."""

import json
import sys

import pytest

from zaya_jax import main
from zaya_jax.plan import choices

SMALL = (
  'zaya_jax', '--mode=plan', '--plan.devices=2', '--plan.chip=h200',
  '--data.batch_size=4', '--data.seq_len=1024', '--model.vocab_size=8192',
  '--model.num_layers=16', '--model.d_model=512', '--model.num_heads=2',
  '--model.head_dim=128', '--model.num_experts=16', '--model.d_expert=512',
)  # fmt: skip


def test_rows_are_json_in_a_pipe_and_in_the_file(tmp_path, capsys):
  path = tmp_path / 'ways.json'
  assert not main.main([*SMALL, '--plan.search', f'--output={path}'])
  lines = capsys.readouterr().out.splitlines()
  rows = [json.loads(line) for line in lines if line.startswith('{')]
  assert rows == json.loads(path.read_text())['rows']
  assert 0 < rows[0]['range'][0] < rows[0]['step'] < rows[0]['range'][1]


def test_a_terminal_gets_a_table(monkeypatch, capsys):
  monkeypatch.setattr(sys.stdout, 'isatty', lambda: True)
  assert not main.main([*SMALL, '--plan.search'])
  shown = capsys.readouterr().out
  assert '--model.remat=' in shown and '--plan.compile=rocm compiles' in shown
  assert not main.main([*SMALL, '--plan.parameters=215M'])
  shown = capsys.readouterr().out
  assert '--model.d_model=' in shown and 'tried: d_model 512' in shown


def test_the_best_three_are_compiled(monkeypatch, capsys):
  compiled = []

  def compile_step(config):
    compiled.append((config.model.remat, config.optim.accumulation))
    return {'arguments': 1e9, 'temporary': 2e9}

  monkeypatch.setattr(choices.rocm, 'compile_step', compile_step)
  words = (*SMALL[:3], '--plan.chip=mi300x', *SMALL[4:])
  assert not main.main([*words, '--plan.search', '--plan.compile=rocm'])
  rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
  assert ['compiled' in row for row in rows[:4]] == [True] * 3 + [False]
  assert len(compiled) == 3


@pytest.mark.parametrize(
  'words, sentence',
  [
    (['--plan.search', '--plan.parameters=1B'], 'are two questions'),
    (['--plan.search', '--output=a.svg'], 'there is a picture of a single'),
    (['--machine=none.json'], 'does not exist; name a .json file'),
    (['--machine=mi300x'], 'mi300x is of AMD Instinct MI300X and not of H200'),
  ],
)
def test_bad_flags_are_one_sentence(words, sentence, capsys):
  assert main.main([*SMALL, *words]) == 2
  (line,) = capsys.readouterr().err.splitlines()
  assert sentence in line
