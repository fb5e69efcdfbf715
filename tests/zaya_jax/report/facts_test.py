# SPDX-License-Identifier: Apache-2.0
"""What the head of a page says of a run, and of runs that are compared."""

import dataclasses
import json

import pytest

from tests.support import run_files
from zaya_jax import config as config_lib
from zaya_jax.report import facts, overview, records

# Quick start: 1.2M parameters, counted leaf by leaf when it was trained.
MODEL = config_lib.ModelConfig(
  num_layers=3, d_model=160, num_heads=4, num_kv_heads=2, head_dim=32,
  num_experts=4, d_expert=160, d_router=32, vocab_size=320,
)  # fmt: skip


@pytest.fixture
def run(tmp_path):
  return run_files.write(tmp_path / 'run')


def _rewrite(run, **sections):
  """Replaces sections of the settings in config.json."""
  known = json.loads((run / 'config.json').read_text())
  known['config'] |= sections
  (run / 'config.json').write_text(json.dumps(known))


def _facts(run):
  return dict(facts.table([records.read(str(run))]))


def test_head_of_a_run(run):
  data = {'dir': [], 'input': 'stdlib', 'batch_size': 8, 'seq_len': 128}
  _rewrite(run, model=dataclasses.asdict(MODEL), data=data, restore='runs/a')
  found = _facts(run)
  assert found['parameters'] == '1,224,006, 481,606 active without embedding'
  assert found['model'] == '3 layers, width 160, 4 experts of width 160'
  assert found['data'] == 'stdlib; a step is 8 x 128 tokens'
  assert found['start'] == 'from runs/a'
  assert found['tokens trained on'] == '819k'
  assert 'status' not in found  # It stands above.


def test_memory_is_the_most_of_all_processes(run):
  assert 'memory' not in _facts(run)  # On a CPU.
  with (run / 'metrics.jsonl').open('a') as file:
    for step, peak in (900, 24.6e9), (1000, 23.4e9):
      row = {'step': step, 'tokens': step, 'memory/peak_bytes': peak}
      file.write(json.dumps(row) + '\n')
  assert _facts(run)['memory'] == '24.6 GB of a device at most'


def test_data_may_be_folders_of_shards(run):
  data = {'dir': ['a'], 'input': '', 'batch_size': 2, 'seq_len': 64}
  for folders, shown in (
    (['a'], 'a'),
    (['a', 'b@3'], 'a (25%), b (75%)'),
    (['a', 'b@x'], 'a, b@x'),  # Of a file that somebody has edited.
  ):
    _rewrite(run, data={**data, 'dir': folders})
    assert _facts(run)['data'] == f'{shown}; a step is 2 x 64 tokens'


def test_start_and_duration_of_all_processes(run):
  row = lambda step, clock, now: {
    'step': step,
    'time/elapsed_s': clock,
    'time/unix_s': now,
  }
  rows = [row(1, 30.0, 86430.0), row(9, 90.0, 86490.0), row(10, 45.5, 90000.0)]
  run_files.lines(run / 'metrics.jsonl', rows)
  found = _facts(run)
  assert found['start'] == '1970-01-02 00:00 UTC, from new weights'
  assert found['duration'] == '02:16, in 2 processes'  # 90 s and 45.5 s.


def test_run_of_an_older_version_says_less(run):
  run_files.lines(run / 'metrics.jsonl', [{'step': 1, 'train/loss': 2.0}])
  _rewrite(run, model={'num_layers': 'x'}, data=None)
  found = _facts(run)
  assert found['training loss'] == '2.0000'
  for name in ('parameters', 'data', 'duration', 'throughput'):
    assert name not in found


@pytest.mark.parametrize(
  'zlib, words', [(2.02, []), (2.11, ['2.0200', '2.1100'])]
)
def test_different_held_out_texts_are_warned_of(tmp_path, zlib, words):
  folders = []
  for name, value in (('a', 2.02), ('b', zlib), ('c', None)):
    folders.append(str(run_files.write(tmp_path / name)))
    row = {'step': 1, 'val/bpb': 2.5, 'val/zlib_bpb': value}
    run_files.lines(tmp_path / name / 'metrics.jsonl', [row])
  found = facts.cautions(overview.read(folders))
  assert len(found) == bool(words)
  assert all(word in found[0] for word in words)
