# SPDX-License-Identifier: Apache-2.0
"""What --mode=data says, against the text that was prepared."""

import json

import pytest

from pipelines import prepare
from zaya_jax import main
from zaya_jax.data import contents

TEXTS = {
  'a': [f'short {i}' for i in range(30)],
  'b': ['a longer text ' * 20 + str(i) for i in range(5)],
}


@pytest.fixture
def shards(tmp_path):
  folder = tmp_path / 'corpus'
  folder.mkdir()
  for name, texts in TEXTS.items():
    lines = ''.join(json.dumps({'text': t}) + '\n' for t in texts)
    (folder / f'{name}.jsonl').write_text(lines)
  (folder / 'c.jsonl').write_text('{"text": "short 3"}\n')
  prepare.prepare(
    str(folder), tmp_path / 'shards', val_fraction=0.2, record_tokens=64
  )
  return tmp_path / 'shards'


def _rows(capsys, *args):
  capsys.readouterr()
  assert main.main(['zaya_jax', '--mode=data', *args]) == 0
  return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_rows_are_what_was_prepared(shards, capsys):
  rows = _rows(
    capsys, f'--data.dir={shards}@3', '--num_steps=10', '--data.batch_size=2'
  )
  splits = [row for row in rows if 'shards' in row]
  assert [row['split'] for row in splits] == ['train', 'val']
  assert sum(row['documents'] for row in splits) == 35
  tokens = splits[0]['tokens']
  assert splits[0]['epochs'] == pytest.approx(10 * 2 * 256 / tokens)
  for split in splits:
    mine = [row for row in rows if row.get('split') == split['split']]
    for key in ('file', 'length'):
      counted = [row for row in mine if key in row]
      for column in ('documents', 'tokens'):
        assert sum(row[column] for row in counted) == split[column]
      assert sum(row['share'] for row in counted) == pytest.approx(1)
  lengths = {row['length'] for row in rows if 'length' in row}
  assert lengths == {'up to 8', 'up to 16', 'up to 512'}
  [left] = [row for row in rows if 'left_out' in row]
  assert left['count'] == 1


def test_samples_are_documents(shards, capsys):
  for row in _rows(capsys, f'--source={shards}'):
    if 'sample' in row:
      name, line = row['sample'].split(':')
      text = TEXTS[name[0]][int(line) - 1]
      assert text.startswith(row['text']) and len(row['text']) > 5
      assert row['tokens'] == len(text) + 1


def test_many_files_are_a_few_rows(tmp_path, capsys, monkeypatch):
  monkeypatch.setattr(contents, '_FILES', 2)
  folder = tmp_path / 'corpus'
  folder.mkdir()
  for i in range(6):
    (folder / f'{i}.txt').write_text('x' * (i + 1))
  prepare.prepare(str(folder), tmp_path / 'out', val_fraction=0.0)
  rows = _rows(capsys, f'--data.dir={tmp_path / "out"}')
  files = {r['file']: r['tokens'] for r in rows if 'file' in r}
  assert files == {'5.txt': 7, '4.txt': 6, '4 others': 5 + 4 + 3 + 2}


def test_folder_without_shards_is_refused(tmp_path, capsys):
  code = main.main(['zaya_jax', '--mode=data', f'--data.dir={tmp_path}'])
  assert code == 3
  assert 'manifest.json is missing' in capsys.readouterr().err
