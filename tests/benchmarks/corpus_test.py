# SPDX-License-Identifier: Apache-2.0
"""What a corpus keeps, and what it holds out."""

import hashlib
import json
import random
import zipfile

import pytest

from benchmarks import corpus


def texts(kind, project, count):
  return [
    corpus.Text(project, f'{kind}/{i}', f'{project} {kind} {i}'.ljust(100))
    for i in range(count)
  ]


def made():
  return {
    'python': texts('python', 'django', 90) + texts('python', 'networkx', 10),
    'prose': texts('prose', 'perl-doc', 5),
    'kernel': texts('kernel', 'linux/fs/ext4', 5)
    + texts('kernel', 'linux/mm', 90),
  }


def chosen(total=10_000, seed=0):
  return corpus.choose(made(), total, random.Random(seed))


def test_each_kind_has_its_share_and_the_last_fills_what_is_left():
  count = lambda word: sum(t.file.startswith(word) for t in chosen())
  assert count('python') == 40
  assert count('prose') == 5  # All that there is, of ten.
  assert count('kernel') == 55


def test_held_out_projects_are_kept_whole_and_apart(tmp_path):
  found = corpus.write(tmp_path / 'out', chosen())
  of = lambda name: [
    json.loads(line)
    for line in (tmp_path / 'out' / f'{name}.jsonl').read_text().splitlines()
  ]
  held = {row['project'] for row in of('held_out')}
  assert held == {'networkx', 'linux/fs/ext4'}
  assert found['held_out']['documents'] == 15
  assert not held & {row['project'] for row in of('train')}
  lines = (tmp_path / 'out' / 'train.jsonl').read_bytes()
  assert found['train']['sha256'] == hashlib.sha256(lines).hexdigest()


def test_equal_texts_are_kept_once():
  doubled = {kind: 2 * of_kind for kind, of_kind in made().items()}
  kept = corpus.choose(doubled, 10**6, random.Random(0))
  assert len({text.text for text in kept}) == len(kept) == 200


def test_the_seed_decides_which_texts_and_their_order():
  assert chosen() == chosen()
  assert set(chosen(seed=1)) != set(chosen())


def test_a_wheel_gives_its_sources(tmp_path):
  path = tmp_path / 'scikit_learn-1.0-py3-none-any.whl'
  with zipfile.ZipFile(path, 'w') as archive:
    archive.writestr('a.py', 'x = 1\n' * 100)
    archive.writestr('stub.py', 'x = 1\n')
    archive.writestr('latin.py', 'é'.encode('latin-1') * 300)
    archive.writestr('b.so', 'x' * 300)
  [text] = corpus.files_of('python', tmp_path)
  assert (text.project, text.file) == ('scikit-learn', 'a.py')


def test_a_folder_that_exists_is_not_touched(tmp_path, monkeypatch, capsys):
  monkeypatch.setattr('sys.argv', ['corpus', f'--output={tmp_path}'])
  monkeypatch.setattr(corpus, 'download', lambda folder: pytest.fail('called'))
  with pytest.raises(SystemExit) as stop:
    corpus.main()
  assert stop.value.code == 2
  assert 'exists; name another' in capsys.readouterr().err
