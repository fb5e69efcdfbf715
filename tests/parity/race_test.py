# SPDX-License-Identifier: Apache-2.0
"""A whole speedrun of tiny programs on a CPU; it takes minutes."""

import json
import sys

import pytest

from benchmarks import equal_time, speedrun, sweep
from tests.support import tiny_case

FLAGS = [
  *tiny_case.FLAGS,
  '--model.vocab_size=270',
  '--data.seq_len=32',
  '--data.batch_size=4',
  '--data.train_tokenizer=0',
  '--optim.warmup_steps=5',
]
PEERS = ['--adamw_shape=1x16x2', '--strong_shape=2x16', '--strong_lrs=0.05']


@pytest.fixture(name='place')
def _place(tmp_path):
  folder = tmp_path / 'corpus'
  folder.mkdir()
  texts = [f'def f{i}(x):\n  return x + {i}\n' * 30 for i in range(40)]
  for name, some in (('train', texts[4:]), ('held_out', texts[:4])):
    lines = ''.join(json.dumps({'text': text}) + '\n' for text in some)
    (folder / f'{name}.jsonl').write_text(lines)
  (folder / 'manifest.json').write_text('{}')
  return [f'--corpus={folder}', f'--data={tmp_path}/race']


def run(module, output, monkeypatch, *flags):
  args = [f'--output={output}', '--every=10', *PEERS, *FLAGS, *flags]
  monkeypatch.setattr(sys, 'argv', [module.__name__, *args])
  module.main()
  return sweep.read(output)


@pytest.mark.long
def test_all_race_for_the_same_seconds_and_to_a_target(
  place, tmp_path, monkeypatch
):
  output = tmp_path / 'rows.jsonl'
  common = [*place, '--seeds=1', '--adamw_lrs=1e-3,3e-3', '--tune_s=1']
  rows = run(equal_time, output, monkeypatch, *common, '--seconds=3')
  full = [r for r in rows if r['counts'] and r['seconds'] == 3]
  assert [r['program'] for r in full] == ['zaya_jax', 'adamw', 'strong']
  assert all(0 < r['train_s'] <= 3 for r in full)
  own = {'adamw': 2}  # Rows of a step; of the others four.
  assert all(
    r['tokens'] == 32 * own.get(r['program'], 4) * r['steps'] for r in full
  )
  first = {r['program']: r['curve'][0]['bpb'] for r in full}
  assert all(r['bpb'] <= first[r['program']] for r in full)
  assert len({r['shards_sha256'] for r in rows}) == 1
  # Trials are not made again, and each run ends at the target.
  target = max(first.values()) + 0.05
  times = [f'--{name}_seconds=3' for name in first]
  raced = run(
    speedrun, output, monkeypatch, *common, *times, f'--target={target}'
  )
  new = raced[len(rows) :]
  assert [r['program'] for r in new if r['counts']] == list(first)
  table = '\n'.join(speedrun.table(raced))
  assert table.count('1 of 1') == 3
