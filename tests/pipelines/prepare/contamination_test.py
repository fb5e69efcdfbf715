# SPDX-License-Identifier: Apache-2.0
"""Shared words against a naive search."""

import gzip
import json
import random

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from pipelines import errors, prepare
from pipelines.prepare import contamination
from pipelines.prepare.input import rows

TEST = 'How many of the seven brown foxes jump over the lazy dog every day?'


def _document(*pieces):
  return rows.Document('a', 1, lambda: iter(pieces))


def _grams(tmp_path, text=TEST):
  path = tmp_path / 'test.txt'
  path.write_text(text)
  return contamination.Grams.of([str(path)])


def test_thirteen_words_in_a_row_are_found(tmp_path):
  grams = _grams(tmp_path)
  words = TEST.rstrip('?').split()
  assert len(words) == 14
  assert grams.occur(_document(f'Before. {" ".join(words[:13])} after'))
  assert grams.occur(_document('x ' + ',\n'.join(words[1:]).upper() + '!'))
  assert not grams.occur(_document(' '.join(words[:12])))
  assert not grams.occur(_document(' '.join([*words[:6], 'x', *words[6:]])))
  assert not grams.occur(_document(' '.join(words[::-1])))
  # They may lie in two pieces.
  assert grams.occur(_document(' '.join(words[:5]) + ' ', ' '.join(words[5:])))


def test_agrees_with_a_naive_search(tmp_path):
  rng = random.Random(0)
  vocabulary = 'a b c'.split()
  test = [rng.choice(vocabulary) for _ in range(300)]
  grams = _grams(tmp_path, ' '.join(test))
  windows = {tuple(test[i : i + 13]) for i in range(len(test) - 12)}
  found = []
  for _ in range(300):
    words = [rng.choice(vocabulary) for _ in range(20)]
    if rng.random() < 0.5:
      start = rng.randrange(280)
      words[3:16] = test[start : start + rng.choice([12, 13])]
    expected = any(
      tuple(words[i : i + 13]) in windows for i in range(len(words) - 12)
    )
    found.append(expected)
    assert grams.occur(_document(' '.join(words))) == expected
  assert 50 < sum(found) < 250


@pytest.mark.parametrize('kind', ['txt', 'jsonl', 'parquet'])
def test_documents_are_left_out_counted_and_named(tmp_path, kind):
  tests = tmp_path / f'tests.{kind}'
  row = {'id': 7, 'question': {'text': TEST}, 'choices': ['no', 'yes']}
  if kind == 'parquet':
    pq.write_table(pa.Table.from_pylist([row]), tests)
  else:
    tests.write_text(json.dumps(row) if kind == 'jsonl' else TEST)
  path = tmp_path / 'a.jsonl'
  texts = [f'text {i}' for i in range(20)]
  texts[4] = f'The quiz: {TEST} Nobody knows.'
  path.write_text(''.join(json.dumps({'text': t}) + '\n' for t in texts))
  data = prepare.prepare(
    str(path),
    tmp_path / 'out',
    decontaminate=[str(tests)],
    val_fraction=0.2,
    record_tokens=64,
  )
  assert data.left_out == {'contaminated': 1}
  assert data.skipped == {'a.jsonl:5': 'in --data.decontaminate'}
  assert sum(s.documents for s in data.splits.values()) == 19


@pytest.mark.parametrize('kind', ['parquet', 'jsonl.gz', 'txt.zst'])
@pytest.mark.parametrize('given', ['{}', '{}/*', 'memory:/{}'])
def test_folders_globs_and_urls_are_read_as_their_files(tmp_path, kind, given):
  tests = tmp_path / 'tests'
  tests.mkdir()
  file = tests / f'a.{kind}'
  if kind == 'parquet':
    pq.write_table(pa.table({'question': [TEST]}), file)
  elif kind == 'jsonl.gz':
    file.write_bytes(gzip.compress(json.dumps({'question': TEST}).encode()))
  else:
    file.write_bytes(zstandard.compress(TEST.encode()))
  if given.startswith('memory'):
    fs = fsspec.filesystem('memory')
    fs.pipe_file(f'{tests}/{file.name}', file.read_bytes())
  grams = contamination.Grams.of([given.format(tests)])
  assert grams.sha256 == _grams(tmp_path).sha256


@pytest.mark.parametrize(
  'name, text, sentence',
  [
    ('t.txt', 'too short', 'no text of 13 words'),
    ('t.jsonl', 'oops', 'line 1 is not JSON'),
    ('t.jsonl', '[' * 100_000, 'line 1 is not JSON'),
    ('gone.txt', None, 'gone.txt does not exist'),
  ],
)
def test_wrong_files_are_named(tmp_path, name, text, sentence):
  if text:
    (tmp_path / name).write_text(text)
  with pytest.raises(errors.DataError, match=sentence) as caught:
    contamination.Grams.of([str(tmp_path / name)])
  assert caught.value.exit_code == 2
