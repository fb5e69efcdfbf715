# SPDX-License-Identifier: Apache-2.0
"""Text behind URLs, here in memory; `tests/stores` has real ones."""

import concurrent.futures
import json
import uuid

import fsspec
import pytest

from pipelines import errors, prepare, store
from pipelines.prepare import output
from pipelines.prepare.input import read
from pipelines.shards import manifest
from tests.support import chats

SMALL = {'record_tokens': 64, 'val_fraction': 0.2}


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch, tmp_path):
  monkeypatch.setattr(store.time, 'sleep', lambda seconds: None)
  monkeypatch.setattr(output, 'staging', lambda url: tmp_path / 'staging')


def _fill(root):
  """The same files here or there."""
  fs, place = fsspec.core.url_to_fs(str(root))
  fs.makedirs(f'{place}/sub', exist_ok=True)
  lines = ''.join(json.dumps({'text': f'text {i}'}) + '\n' for i in range(50))
  fs.pipe_file(f'{place}/a.jsonl', lines.encode())
  fs.pipe_file(f'{place}/sub/b.txt', b'some text\n' * 20)
  fs.pipe_file(f'{place}/README.md', b'of the data set')
  return str(root)


@pytest.fixture
def remote():
  return _fill(f'memory://{uuid.uuid4()}/corpus')


def _same(one, other):
  assert one.splits == other.splits
  assert (one.sources, one.skipped) == (other.sources, other.skipped)


def test_text_behind_a_url_gives_what_text_here_gives(tmp_path, remote):
  here = prepare.prepare(_fill(tmp_path / 'corpus'), tmp_path / 'a', **SMALL)
  there = prepare.prepare(remote, tmp_path / 'b', workers=1, **SMALL)
  _same(here, there)
  assert there.sources == ('a.jsonl', 'sub/b.txt')
  assert there.skipped == {'README.md': 'describes the data set'}


def test_glob_and_single_file_behind_a_url(remote):
  for name in ('*.jsonl', '?.jsonl', '[a-c].jsonl'):
    assert list(read.find(f'{remote}/{name}')) == ['a.jsonl']
  assert list(read.find(f'{remote}/s?b/*.txt')) == ['sub/b.txt']
  assert list(read.find(f'{remote}/sub/b.txt')) == ['b.txt']
  fs, place = fsspec.core.url_to_fs(remote)
  fs.pipe_file(f'{place}/c[1].txt', b'no glob')
  assert list(read.find(f'{remote}/c[1].txt')) == ['c[1].txt']


@pytest.mark.parametrize('given', ['{}/sub', '{}/sub/b.txt'])
def test_single_text_behind_a_url_has_its_tail_held_out(
  tmp_path, remote, given
):
  data = prepare.prepare(given.format(remote), tmp_path / 'out', **SMALL)
  assert data.splits['val'].bytes == 0.2 * len('some text\n' * 20)


@pytest.mark.parametrize(
  'url, sentence',
  [
    ('memory://nowhere/x', 'does not exist'),
    ('foo://x/y', 'not a place that can be read'),
  ],
)
def test_wrong_url_is_named(tmp_path, url, sentence):
  with pytest.raises(errors.DataError, match=sentence) as caught:
    prepare.prepare(url, tmp_path / 'out')
  assert caught.value.exit_code == 2
  assert list(tmp_path.iterdir()) == []


def test_connection_that_drops_is_tried_again(tmp_path, remote, monkeypatch):
  calls, true = [], store._get

  def drops(fs, path, copy, size):
    calls.append(path)
    if len(calls) % 3:
      copy.write_text('half of it')
      raise ConnectionResetError('reset by peer')
    true(fs, path, copy, size)

  monkeypatch.setattr(store, '_get', drops)
  data = prepare.prepare(remote, tmp_path / 'out', **SMALL)
  assert data.num_sources == 2


def test_connection_that_stays_away_is_one_sentence(
  tmp_path, remote, monkeypatch
):
  def drops(*args):
    raise ConnectionResetError('reset by peer')

  monkeypatch.setattr(store, '_get', drops)
  with pytest.raises(errors.DataError, match='did not answer 3 ti') as caught:
    prepare.prepare(remote, tmp_path / 'out', **SMALL)
  assert caught.value.exit_code == 1
  assert 'reset by peer' in str(caught.value)
  assert list(tmp_path.iterdir()) == []


def test_cut_copy_is_not_taken_for_the_file(tmp_path, remote, monkeypatch):
  file = read.find(remote)['a.jsonl']
  cut = store.File(file.path, file.size + 1, file.version)
  with pytest.raises(errors.DataError, match=f'{file.size} of {file.size + 1}'):
    with cut.local(tmp_path):
      pass
  assert list(tmp_path.iterdir()) == []


def test_machines_with_equal_process_numbers_keep_their_copies_apart(
  tmp_path, remote, monkeypatch
):
  monkeypatch.setattr(store.os, 'getpid', lambda: 7)  # As in containers.
  files = read.find(remote)
  with files['a.jsonl'].local(tmp_path) as a:
    with files['sub/b.txt'].local(tmp_path) as b:
      assert a.read_bytes().startswith(b'{"text": "text 0"}')
      assert b.read_bytes() == b'some text\n' * 20
    assert a.exists()
  assert list(tmp_path.iterdir()) == []


class _HttpError(Exception):
  """As gcsfs has it."""

  def __init__(self, code):
    super().__init__(f'Anonymous caller, {code}')
    self.code = code


@pytest.mark.parametrize(
  'error',
  [
    PermissionError('no key'),
    RuntimeError('NoCredentials'),
    OSError('Forbidden: b/bucket/o'),
    _HttpError(401),
  ],
)
def test_missing_credentials_are_named(remote, error):
  def refuses():
    raise error

  with pytest.raises(errors.DataError, match='want of perm') as caught:
    store.attempt(refuses, remote)
  assert caught.value.exit_code == 2


def test_store_that_cannot_answer_refuses_nobody(remote):
  def fails():
    raise _HttpError(503)

  with pytest.raises(errors.DataError, match='did not answer 3') as caught:
    store.attempt(fails, remote)
  assert caught.value.exit_code == 1


def test_missing_driver_is_named(monkeypatch):
  def missing(url):
    raise ImportError('Install s3fs to access S3')

  monkeypatch.setattr(fsspec.core, 'url_to_fs', missing)
  with pytest.raises(errors.DataError, match='pip install s3fs') as caught:
    read.find('s3://bucket/x')
  assert caught.value.exit_code == 2


def test_output_behind_a_url_is_no_folder_here(tmp_path, remote, monkeypatch):
  monkeypatch.chdir(tmp_path)
  url = f'memory://{uuid.uuid4()}/out'
  data = prepare.prepare(remote, url, **SMALL)
  assert list(tmp_path.iterdir()) == []
  fs, place = fsspec.core.url_to_fs(url)
  fs.get(place, str(tmp_path / 'copy'), recursive=True)
  assert manifest.verify(tmp_path / 'copy') == data
  # The same call finds it, another is refused.
  assert prepare.prepare(remote, url, **SMALL) == data
  with pytest.raises(errors.DataError, match='other settings'):
    prepare.prepare(remote, url, **{**SMALL, 'record_tokens': 32})
  with pytest.raises(errors.DataError, match='parts meet in a folder'):
    prepare.prepare(remote, url, part=(0, 2), **SMALL)


def test_output_behind_a_url_is_compared_as_one_here_is(tmp_path):
  url = f'memory://{uuid.uuid4()}/out'
  corpus = _fill(tmp_path / 'corpus')
  made = prepare.prepare(corpus, url, **SMALL)
  assert prepare.prepare(corpus, url, **SMALL, window_tokens=32) == made
  with pytest.raises(errors.DataError, match=r'val_fraction=0.5 \(there: 0.2'):
    prepare.prepare(corpus, url, **{**SMALL, 'val_fraction': 0.5})
  (tmp_path / 'corpus' / 'new.txt').write_text('one more')
  with pytest.raises(errors.DataError, match='prepared from other files'):
    prepare.prepare(corpus, url, **SMALL)


def test_trimmed_conversations_behind_a_url_have_the_windows_asked_for(
  tmp_path,
):
  url = f'memory://{uuid.uuid4()}/out'
  messages = [{'role': 'user', 'content': 'q'}]
  messages.append({'role': 'assistant', 'content': 'a'})
  (tmp_path / 'a.jsonl').write_text(json.dumps({'messages': messages}))
  settings = {
    'tokenizer': str(chats.tokenizer_folder(tmp_path / 'tokenizer')),
    'val_fraction': 0.0,
    'record_tokens': 128,
    'trim': True,
  }
  source = str(tmp_path / 'a.jsonl')
  made = prepare.prepare(source, url, window_tokens=64, **settings)
  assert prepare.prepare(source, url, window_tokens=64, **settings) == made
  with pytest.raises(errors.DataError, match='window_tokens=128'):
    prepare.prepare(source, url, window_tokens=128, **settings)


def test_upload_that_fails_goes_on_with_what_is_prepared(
  tmp_path, remote, monkeypatch
):
  url = f'memory://{uuid.uuid4()}/out'
  fs, place = fsspec.core.url_to_fs(url)
  true = store.attempt

  def fails(function, name):
    if name.endswith('files.jsonl'):
      raise errors.DataError('no answer', errors.UNUSABLE)
    return true(function, name)

  with monkeypatch.context() as patch:
    patch.setattr(store, 'attempt', fails)
    with pytest.raises(errors.DataError, match='no answer'):
      prepare.prepare(remote, url, **SMALL)
  assert not fs.exists(f'{place}/manifest.json')
  monkeypatch.setattr(prepare, '_make', None)
  prepare.prepare(remote, url, **SMALL)
  assert fs.exists(f'{place}/manifest.json')


def test_writers_of_one_file_do_not_meet(tmp_path):
  # As processes of one number do, in containers.
  path, texts = tmp_path / 'a.json', [b'a' * 10**6, b'b' * 10**6]

  def write(text):
    for _ in range(50):
      store.replace(path, text)
      assert path.read_bytes() in texts

  with concurrent.futures.ThreadPoolExecutor(2) as pool:
    list(pool.map(write, texts))
  assert list(tmp_path.iterdir()) == [path]
  path.unlink()
  path.touch()
  mode = path.stat().st_mode
  store.replace(path, b'')
  assert path.stat().st_mode == mode
