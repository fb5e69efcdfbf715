# SPDX-License-Identifier: Apache-2.0

import gzip
import io
import json
import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from pipelines import errors
from pipelines.prepare.input import read, rows, stream


def _texts(source):
  return {d.key: ''.join(d.pieces()) for d in source.documents()}


def _read(path, text_field='text'):
  return _texts(read.Source(str(path), text_field))


def _refused(path, sentence, text_field='text'):
  with pytest.raises(errors.DataError, match=sentence) as caught:
    _read(path, text_field)
  assert caught.value.exit_code == 2


def test_folder_is_read_in_order_without_hidden_and_binary_files(tmp_path):
  (tmp_path / 'b').mkdir()
  (tmp_path / '.git').mkdir()
  (tmp_path / 'b' / 'two.py').write_text('two\r\n')
  (tmp_path / 'a.txt').write_text('one')
  (tmp_path / 'empty.txt').write_text('')
  (tmp_path / '.hidden').write_text('no')
  (tmp_path / '.git' / 'x').write_text('no')
  (tmp_path / 'image.png').write_bytes(b'\x89PNG\0\0')
  (tmp_path / 'latin.txt').write_bytes('é'.encode('latin-1'))
  source = read.Source(str(tmp_path), 'text')
  assert list(_texts(source).items()) == [
    ('a.txt:0', 'one'),
    ('b/two.py:0', 'two\r\n'),
  ]
  assert source.skipped == {'image.png': 'binary', 'latin.txt': 'not UTF-8'}
  assert list(source.used) == ['a.txt', 'b/two.py']


def test_formats_give_the_same_texts(tmp_path):
  texts = ['one', 'zwei ☃', 'a\u2028b\nc']
  lines = ''.join(json.dumps({'text': t}) + '\n' for t in texts)
  (tmp_path / 'a.jsonl').write_text(lines)
  # Two frames: what `cat a.zst b.zst` gives.
  half = lines.index('\n') + 1
  frames = [lines[:half].encode(), lines[half:].encode()]
  (tmp_path / 'a.jsonl.zst').write_bytes(
    b''.join(map(zstandard.compress, frames))
  )
  pq.write_table(pa.table({'text': texts}), tmp_path / 'a.parquet')
  (tmp_path / 'a.jsonl.gz').write_bytes(gzip.compress(lines.encode()))
  (tmp_path / 'a.json.gz').write_bytes(gzip.compress(lines.encode()))
  (tmp_path / 'a.json').write_text(lines)
  for name in (
    *('a.jsonl', 'a.jsonl.zst', 'a.jsonl.gz', 'a.json', 'a.json.gz'),
    'a.parquet',
  ):
    assert list(_read(tmp_path / name).values()) == texts


def test_glob_takes_what_it_matches(tmp_path):
  for name in ('a.txt', 'b.txt', 'c.md'):
    (tmp_path / name).write_text(name)
  assert list(_read(tmp_path / '*.txt')) == ['a.txt:0', 'b.txt:0']


def test_linked_folders_are_read_and_loops_are_not(tmp_path):
  here, there = tmp_path / 'here', tmp_path / 'there'
  here.mkdir(), there.mkdir()
  (here / 'a.txt').write_text('one')
  (there / 'b.txt').write_text('two')
  (here / 'linked').symlink_to(there)
  (there / 'back').symlink_to(here)  # Each leads to the other.
  (here / 'self').symlink_to(here)
  assert _read(here) == {'a.txt:0': 'one', 'linked/b.txt:0': 'two'}


def test_folder_that_cannot_be_read_is_named(tmp_path, monkeypatch):
  (tmp_path / 'open').mkdir()
  (tmp_path / 'open' / 'a.txt').write_text('one')
  (tmp_path / 'shut').mkdir()
  true = os.scandir

  def scandir(path='.'):
    if str(path).endswith('shut'):
      raise PermissionError(13, 'Permission denied', str(path))
    return true(path)

  monkeypatch.setattr(os, 'scandir', scandir)
  _refused(tmp_path, 'shut cannot be read .Permission denied')


def test_file_name_that_is_not_utf8_is_refused(tmp_path):
  (tmp_path / os.fsdecode(b'caf\xe9.txt')).write_text('one')
  _refused(tmp_path, r'caf.udce9.txt. is not UTF-8; rename')


def test_stdlib_is_there_without_its_tests():
  names = list(read.find('stdlib'))
  assert 'json/decoder.py' in names
  assert all(name.endswith('.py') for name in names)
  folders = {part for name in names for part in name.split('/')[:-1]}
  assert not folders & {'test', 'tests', 'site-packages', '__pycache__'}


def test_blank_lines_and_empty_texts_give_no_document(tmp_path):
  path = tmp_path / 'a.jsonl'
  path.write_text('\n{"text": ""}\n \n{"text": "x"}\n')
  assert _read(path) == {'a.jsonl:4': 'x'}


def test_half_a_surrogate_pair_is_replaced(tmp_path):
  path = tmp_path / 'a.jsonl'
  path.write_text('{"text": "a\\ud800b"}')
  assert _read(path) == {'a.jsonl:1': 'a\ufffdb'}


@pytest.mark.parametrize(
  'line, sentence',
  [
    (b'{"text": ', 'a.jsonl line 2 is not JSON'),
    (b'[' * 100_000, 'a.jsonl line 2 is not JSON'),
    (b'{"body": "x", "id": 1}', "line 2 has no field 'text'.*body, id"),
    (b'{"text": null}', 'line 2: field .text. .* is not a string'),
    (b'["text"]', 'line 2 is not a JSON object'),
    (b'{"text": "\xe9"}', 'line 2 is not UTF-8'),
    (b'{"text": "x", "id": %s}' % (b'1' * 5000), 'line 2 is not JSON'),
    (b'{"messages": [{"from": ["a"]}]}', "message 1 has no 'role' that is a s"),
  ],
)
def test_bad_line_is_named(tmp_path, line, sentence):
  path = tmp_path / 'a.jsonl'
  path.write_bytes(b'{"text": "x"}\n' + line + b'\n')
  _refused(path, sentence)


def test_other_field_can_be_named(tmp_path):
  path = tmp_path / 'a.jsonl'
  path.write_text('{"body": "x"}')
  assert _read(path, 'body') == {'a.jsonl:1': 'x'}


def test_damaged_zst_is_refused(tmp_path):
  path = tmp_path / 'a.jsonl.zst'
  path.write_bytes(b'not zstd')
  _refused(path, 'a.jsonl.zst is not a whole zstd file')


def test_cut_zst_is_refused(tmp_path):
  path = tmp_path / 'a.jsonl.zst'
  content = zstandard.compress(b'{"text": "x"}\n' * 1000)
  path.write_bytes(content[:-5])
  _refused(path, 'a.jsonl.zst')


def test_parquet_faults_are_named(tmp_path):
  path = tmp_path / 'a.parquet'
  pq.write_table(pa.table({'body': ['x'], 'id': [1]}), path)
  _refused(path, "no column 'text'.*body, id")
  pq.write_table(pa.table({'text': ['x', None]}), path)
  _refused(path, "row 2: field 'text'")
  path.write_bytes(b'PAR1 no')
  _refused(path, 'not a readable parquet file')


def test_parquet_rows_that_are_not_utf8_are_bad_rows(tmp_path):
  path = tmp_path / 'a.parquet'
  written = pa.array([b'one', b'\xff no', b'three'], pa.binary())
  texts = pa.Array.from_buffers(pa.string(), 3, written.buffers())
  pq.write_table(pa.table({'text': texts}), path)
  _refused(path, 'a.parquet row 2 is not UTF-8')
  source = read.Source(str(path), 'text', skip_bad=True)
  assert list(_texts(source).values()) == ['one', 'three']
  assert (source.rows.count, source.rows.bad) == (3, 1)


@pytest.mark.parametrize(
  'content, texts',
  [
    ('{"text": "row"}', ['row']),
    ('{"text": "row"}\n{"text": "two"}\n', ['row', 'two']),
    ('{"name": "x", "version": 1}', ['{"name": "x", "version": 1}']),
    ('{\n  "text": "one"\n}', ['{\n  "text": "one"\n}']),
    ('[1, 2]', ['[1, 2]']),
    ('{"a": 1} and so on', ['{"a": 1} and so on']),
  ],
)
def test_json_is_rows_where_its_lines_are(tmp_path, content, texts):
  (tmp_path / 'a.json').write_text(content)
  assert list(_read(tmp_path / 'a.json').values()) == texts


def test_lines_of_a_json_without_the_field_are_named(tmp_path):
  (tmp_path / 'a.json').write_text('{"body": "x"}\n{"body": "y"}\n')
  _refused(tmp_path / 'a.json', "line 1 has no field 'text'.*body")


def test_packed_text_is_one_document(tmp_path):
  (tmp_path / 'a.txt.gz').write_bytes(gzip.compress(b'one\ntwo'))
  (tmp_path / 'b.txt.zst').write_bytes(zstandard.compress(b'three'))
  assert list(_read(tmp_path).values()) == ['one\ntwo', 'three']


@pytest.mark.parametrize('harm', [lambda c: c[:-9], lambda c: b'not gzip'])
def test_damaged_gz_is_refused(tmp_path, harm):
  path = tmp_path / 'a.jsonl.gz'
  path.write_bytes(harm(gzip.compress(b'{"text": "x"}\n' * 1000)))
  _refused(path, 'a.jsonl.gz is not a whole gzip file')


def test_what_describes_a_data_set_is_left_out(tmp_path):
  for name in ('README.md', 'dataset_infos.json', 'notes.md'):
    (tmp_path / name).write_text('about it')
  assert len(_read(tmp_path)) == 3  # Three texts, as far as one can see.
  (tmp_path / 'a.jsonl').write_text('{"text": "x"}')
  source = read.Source(str(tmp_path), 'text')
  assert set(_texts(source)) == {'a.jsonl:1', 'notes.md:0'}
  reason = 'describes the data set'
  assert source.skipped == {
    'README.md': reason,
    'dataset_infos.json': reason,
  }


@pytest.mark.parametrize(
  'content, texts',
  [
    ('{"text": "x"}\n{"text": "y"}\n', ['train.json:1', 'train.json:2']),
    ('[1]', ['README.md:0', 'dataset_info.json:0', 'train.json:0']),
  ],
)
def test_json_is_described_where_it_is_of_rows(tmp_path, content, texts):
  for name in ('README.md', 'dataset_info.json'):
    (tmp_path / name).write_text('{"splits": 1}')
  (tmp_path / 'train.json').write_text(content)
  assert list(_read(tmp_path)) == texts


def test_bad_rows_are_counted_and_named_where_they_may_be(tmp_path):
  path = tmp_path / 'a.jsonl'
  path.write_text('{"text": "x"}\noops\n{"body": 1}\n\n{"text": "y"}\n')
  source = read.Source(str(path), 'text', skip_bad=True)
  assert list(_texts(source).values()) == ['x', 'y']
  assert (source.rows.count, source.rows.bad) == (4, 2)
  assert list(source.skipped) == ['a.jsonl:2', 'a.jsonl:3']
  assert 'line 2 is not JSON' in source.skipped['a.jsonl:2']


@pytest.mark.parametrize('name', ['a.jsonl', 'a.jsonl.gz'])
def test_giant_line_is_a_bad_row_and_is_not_held(tmp_path, monkeypatch, name):
  monkeypatch.setattr(stream, '_LONGEST', 100)
  monkeypatch.setattr(stream, '_BLOCK', 64)
  path = tmp_path / name
  lines = ['{"text": "x"}', '{"text": "%s"}' % ('y' * 1000), '{"text": "z"}']
  content = '\n'.join(lines).encode()
  path.write_bytes(gzip.compress(content) if name[-1] == 'z' else content)
  _refused(path, f'{name} line 2 is longer than')
  source = read.Source(str(path), 'text', skip_bad=True)
  assert list(_texts(source).values()) == ['x', 'z']
  held = [line for line in stream.lines(path, name) if line]
  assert max(map(len, held)) <= 100


@pytest.mark.parametrize('block', [1, 3, 2**20])
@pytest.mark.parametrize('end', ['', '\n'])
def test_lines_are_those_of_the_text(tmp_path, monkeypatch, block, end):
  monkeypatch.setattr(stream, '_BLOCK', block)
  path = tmp_path / 'a'
  path.write_bytes(b'one\n\nthree \r\nfour' + end.encode())
  expected = [b'one', b'', b'three \r', b'four']
  assert list(stream.lines(path, 'a')) == expected


@pytest.mark.parametrize(
  'name, sentence',
  [('nowhere', 'does not exist'), ('no*.txt', 'matches no file')],
)
def test_missing_input_is_refused(tmp_path, name, sentence):
  _refused(tmp_path / name, sentence)


def test_pieces_join_to_the_text_and_end_at_lines(monkeypatch):
  monkeypatch.setattr(rows, '_PIECE', 10)
  text = 'ab\ncdefgh\n' * 5 + 'x' * 35 + '\nend'
  pieces = list(rows.pieces(io.StringIO(text)))
  assert ''.join(pieces) == text
  assert max(map(len, pieces)) < 20
  assert pieces[0] == 'ab\ncdefgh\n'


def test_input_hash_sees_a_changed_file(tmp_path):
  (tmp_path / 'a.txt').write_text('one')
  before = read.Source(str(tmp_path), 'text').sha256
  (tmp_path / 'a.txt').write_text('other')
  assert read.Source(str(tmp_path), 'text').sha256 != before
