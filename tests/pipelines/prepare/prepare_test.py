# SPDX-License-Identifier: Apache-2.0

import errno
import fcntl
import os
import pathlib
import random
import subprocess
import sys
import zlib

import numpy as np
import pytest
from array_record.python import array_record_module

from pipelines import errors, prepare, store, tokenizer
from pipelines.prepare import bundle, split, units
from pipelines.prepare.input import read, rows
from pipelines.shards import manifest
from tests.support import shuffled

ROOT = pathlib.Path(__file__).parents[3]
SMALL = {'record_tokens': 64, 'shard_tokens': 128, 'val_fraction': 0.3}


def _stored(folder, name):
  """The tokens of a split, without padding, read without our loader."""
  data = manifest.load(folder)
  found = data.splits[name]
  content = b''
  for shard in found.shards:
    reader = array_record_module.ArrayRecordReader(str(folder / shard.name))
    assert reader.num_records() == shard.records
    content += b''.join(reader.read_all())
    reader.close()
  tokens = np.frombuffer(content, data.dtype)
  assert len(tokens) == found.records * data.record_tokens
  assert (tokens[found.tokens :] == data.pad_id).all()
  return tokens[: found.tokens].tolist()


def _side(corpus, side):
  """The texts of one side, from the split rule and the order alone."""
  source = read.Source(str(corpus), 'text')
  held_out = split.choose(source.documents(), SMALL['val_fraction'])
  return shuffled.in_order(
    text
    for d in source.documents()
    for name, _, text in held_out.parts(d)
    if name == side
  )


def _run(source, **env):
  """Runs a program that prepares `corpus` into `out`; returns its status."""
  return subprocess.run(
    [sys.executable, '-c', source],
    env={
      **os.environ,
      'PYTHONPATH': os.pathsep.join([str(ROOT), *sys.path]),
      **env,
    },
    capture_output=True,
    text=True,
  )


@pytest.mark.parametrize('name', ['train', 'val'])
def test_shards_hold_the_documents_each_after_a_bos(shards, corpus, name):
  texts = _side(corpus, name)
  expected = [i for text in texts for i in [257, *text.encode()]]
  assert len(texts) > 1
  assert _stored(shards, name) == expected


def test_manifest_counts_what_is_there(shards, corpus):
  data = manifest.load(shards)
  texts = _side(corpus, 'val')
  content = ''.join(texts).encode()
  val = data.splits['val']
  assert (val.documents, val.bytes) == (len(texts), len(content))
  assert val.tokens == len(content) + len(texts)
  assert val.bytes_per_token == len(content) / val.tokens
  assert val.zlib_bits_per_byte == pytest.approx(
    8 * len(zlib.compress(content, 9)) / len(content)
  )
  assert data.num_sources == 12
  assert data.sources[0] == '00.txt'
  assert (data.dtype, data.vocab_size) == ('uint16', 259)
  listed = [s for split in data.splits.values() for s in split.shards]
  assert {p.name for p in shards.iterdir()} == {
    'manifest.json',
    'files.jsonl',
    *(s.name for s in listed),
    *(manifest.documents_path(shards, s).name for s in listed),
  }
  count = len(data.splits['train'].shards)
  assert data.splits['train'].shards[0].name == (
    f'train-00000-of-{count:05}.array_record'
  )


def test_skipped_files_are_counted_and_named(tmp_path, corpus):
  (corpus / 'latin.txt').write_bytes('é'.encode('latin-1'))
  data = prepare.prepare(str(corpus), tmp_path / 'out', **SMALL)
  assert (data.num_skipped, data.skipped) == (1, {'latin.txt': 'not UTF-8'})


def test_preparing_twice_gives_the_same_bytes(tmp_path, corpus, shards):
  again = prepare.prepare(str(corpus), tmp_path / 'again', **SMALL)
  assert again == manifest.load(shards)


def test_pieces_of_a_document_join_without_a_seam(
  tmp_path, corpus, shards, monkeypatch
):
  monkeypatch.setattr(rows, '_PIECE', 7)
  again = prepare.prepare(str(corpus), tmp_path / 'again', **SMALL)
  assert again == manifest.load(shards)


def test_progress_counts_up_to_the_whole(tmp_path, corpus):
  seen = []
  data = prepare.prepare(
    str(corpus),
    tmp_path / 'out',
    **SMALL,
    progress=lambda documents, tokens: seen.append((documents, tokens)),
  )
  assert seen == sorted(seen)
  assert seen[-1] == (12, sum(s.tokens for s in data.splits.values()))


def test_trained_tokenizer_is_kept_with_the_shards(tmp_path, corpus):
  out = tmp_path / 'out'
  data = prepare.prepare(str(corpus), out, **SMALL, train_tokenizer=270)
  kept = manifest.load_tokenizer(out)
  assert (data.vocab_size, kept.sha256) == (270, data.tokenizer_sha256)
  ids = [
    i
    for text in _side(corpus, 'train')
    for i in [kept.bos_id, *kept.encode(text).tolist()]
  ]
  assert _stored(out, 'train') == ids
  assert data.splits['train'].bytes_per_token > 1


def test_tokenizer_is_not_trained_on_held_out_text(tmp_path, corpus):
  source = read.Source(str(corpus), 'text')
  held_out = split.choose(source.documents(), SMALL['val_fraction'])
  for document in source.documents():
    if 'val' in {name for name, _, _ in held_out.parts(document)}:
      (corpus / document.name).write_text('zq' * 500)
  prepare.prepare(str(corpus), tmp_path / 'out', **SMALL, train_tokenizer=270)
  vocabulary = manifest.load_tokenizer(tmp_path / 'out').inner.get_vocab()
  assert 'zq' not in vocabulary
  assert 'oc' in vocabulary or 'cu' in vocabulary


def test_exchanged_tokenizer_file_is_refused(tmp_path, corpus):
  out = tmp_path / 'out'
  prepare.prepare(str(corpus), out, **SMALL, train_tokenizer=270)
  tokenizer.train_bpe(['other'], 270).save(out)
  with pytest.raises(errors.DataError, match='not the tokenizer') as caught:
    manifest.load_tokenizer(out)
  assert caught.value.exit_code == 3


@pytest.mark.parametrize(
  'size, dtype', [(2**16, 'uint16'), (2**16 + 1, 'uint32')]
)
def test_large_vocabulary_is_stored_in_four_bytes(
  tmp_path, corpus, size, dtype
):
  path = tmp_path / 'tokenizer.json'
  trained = tokenizer.train_bpe(['text'], 260)
  trained.inner.add_tokens([f'<{i}>' for i in range(size - 260)])
  trained.inner.save(str(path))
  out = tmp_path / 'out'
  data = prepare.prepare(str(corpus), out, **SMALL, tokenizer=str(path))
  assert (data.dtype, data.vocab_size) == (dtype, size)
  assert len(_stored(out, 'val')) == data.splits['val'].tokens


def test_same_settings_find_the_finished_folder(corpus, shards):
  before = (shards / 'manifest.json').stat().st_mtime_ns
  data = prepare.prepare(str(corpus), shards, **SMALL)
  assert data == manifest.load(shards)
  assert (shards / 'manifest.json').stat().st_mtime_ns == before


def test_finished_folder_serves_without_its_text(corpus, shards):
  for path in corpus.iterdir():
    path.unlink()
  corpus.rmdir()
  data = prepare.prepare(str(corpus), shards, **SMALL)
  assert data == manifest.load(shards)


def _refused(sentence, exit_code, *args, **kwargs):
  with pytest.raises(errors.DataError, match=sentence) as caught:
    prepare.prepare(*args, **kwargs)
  assert caught.value.exit_code == exit_code
  assert '\n' not in str(caught.value)


def test_other_settings_are_named_and_nothing_is_overwritten(corpus, shards):
  before = (shards / 'manifest.json').read_bytes()
  _refused(
    r'--data.val_fraction=0.5 \(there: 0.3\)',
    2,
    str(corpus),
    shards,
    **{**SMALL, 'val_fraction': 0.5},
  )
  assert (shards / 'manifest.json').read_bytes() == before


def test_plain_text_is_found_again_whatever_the_windows(tmp_path, corpus):
  settings = {**SMALL, 'trim': True, 'window_tokens': 64}
  made = prepare.prepare(str(corpus), tmp_path / 'out', **settings)
  assert prepare.prepare(str(corpus), tmp_path / 'out', **settings) == made
  settings['window_tokens'] = 32
  assert prepare.prepare(str(corpus), tmp_path / 'out', **settings) == made


def test_changed_text_is_noticed(corpus, shards):
  (corpus / '00.txt').write_text('now another text')
  _refused('prepared from other files', 2, str(corpus), shards, **SMALL)


def test_changed_text_behind_a_glob_is_noticed(tmp_path, corpus):
  pattern = str(corpus / '*.txt')
  prepare.prepare(pattern, tmp_path / 'out', **SMALL)
  (corpus / 'new.txt').write_text('one more')
  _refused('prepared from other files', 2, pattern, tmp_path / 'out', **SMALL)


def test_other_library_does_not_stop_a_run(tmp_path, monkeypatch, corpus):
  monkeypatch.setattr(
    read, 'find', lambda _: {'a.py': store.local_file(corpus / '00.txt')}
  )
  made = prepare.prepare('stdlib', tmp_path / 'out', **SMALL)
  monkeypatch.setattr(
    read, 'find', lambda _: {'a.py': store.local_file(corpus / '09.txt')}
  )
  assert prepare.prepare('stdlib', tmp_path / 'out', **SMALL) == made


def test_changed_tokenizer_is_noticed(tmp_path, corpus):
  tokenizer.train_bpe(['one'], 260).save(tmp_path)
  settings = {**SMALL, 'tokenizer': str(tmp_path / 'tokenizer.json')}
  prepare.prepare(str(corpus), tmp_path / 'out', **settings)
  tokenizer.train_bpe(['other'], 260).save(tmp_path)
  _refused('not the tokenizer of', 3, str(corpus), tmp_path / 'out', **settings)


def test_damaged_finished_folder_is_refused(corpus, shards):
  next(shards.glob('val-*.array_record')).unlink()
  _refused('val-.* missing', 3, str(corpus), shards, **SMALL)


def test_foreign_folder_is_left_alone(tmp_path, corpus):
  out = tmp_path / 'out'
  out.mkdir()
  (out / 'mine').write_text('precious')
  _refused('holds other files', 2, str(corpus), out)
  assert (out / 'mine').read_text() == 'precious'


def test_output_inside_the_input_is_refused(corpus):
  _refused('lies inside', 2, str(corpus), corpus / 'out')


def test_output_that_is_a_file_is_refused(tmp_path, corpus):
  (tmp_path / 'out').write_text('')
  _refused('is a file', 2, str(corpus), tmp_path / 'out')


@pytest.mark.parametrize('content', [b'', b'\xff'])
def test_input_without_text_is_refused(tmp_path, content):
  (tmp_path / 'a.txt').write_bytes(content)
  _refused('holds no text', 2, str(tmp_path / 'a.txt'), tmp_path / 'out')
  assert [p.name for p in tmp_path.iterdir()] == ['a.txt']


def test_bad_line_late_in_the_input_leaves_nothing(tmp_path):
  path = tmp_path / 'a.jsonl'
  path.write_text('{"text": "some text"}\n' * 500 + 'oops\n')
  _refused('line 501 is not JSON', 2, str(path), tmp_path / 'out', **SMALL)
  assert [p.name for p in tmp_path.iterdir()] == ['a.jsonl']


def test_bad_rows_up_to_a_share_are_left_out(tmp_path):
  path = tmp_path / 'a.jsonl'
  rows = [f'{{"text": "text {i}"}}\n' for i in range(100)]
  path.write_text(''.join([*rows[:7], 'oops\n', *rows[8:]]))
  data = prepare.prepare(str(path), tmp_path / 'out', bad_rows=0.01, **SMALL)
  assert sum(s.documents for s in data.splits.values()) == 99
  assert data.left_out == {'bad rows': 1}
  assert list(data.skipped) == ['a.jsonl:8']
  for share in (0.0, 0.009):
    _refused(
      'line 8 is not JSON' if not share else '1 of 100 rows .* a.jsonl:8',
      2,
      str(path),
      tmp_path / 'none',
      bad_rows=share,
      **SMALL,
    )
  # What was read stays for a call that allows more.
  assert not (tmp_path / 'none').exists()


def test_bad_row_that_is_named_is_one(tmp_path):
  path = tmp_path / 'a.jsonl'
  rows = ['{"messages": []}', *['{"text": "x"}'] * 9, 'oops', 'oops']
  path.write_text('\n'.join(rows))
  _refused(
    r'2 of 12 rows .* the first is a.jsonl:11 \(.* is not JSON',
    2,
    str(path),
    tmp_path / 'out',
    bad_rows=0.01,
  )


def test_killed_process_leaves_nothing_that_looks_finished(tmp_path, corpus):
  out = tmp_path / 'out'
  status = _run(
    'import os, signal; from pipelines import prepare\n'
    'def die(documents, tokens):\n'
    '  if documents == 9: os.kill(os.getpid(), signal.SIGKILL)\n'
    f'prepare.prepare({str(corpus)!r}, {str(out)!r}, progress=die, **{SMALL})'
  )
  assert status.returncode == -9, status.stderr
  assert not out.exists()
  partial = tmp_path / 'out.partial'
  assert list((partial / 'units').iterdir())
  with pytest.raises(errors.DataError):
    manifest.load(partial)
  (partial / 'train-00099').write_text('of a killed process')
  (partial / 'units' / 'other.json').write_text('of other settings')
  prepare.prepare(str(corpus), out, **SMALL)
  assert manifest.verify(out).num_sources == 12
  assert not (out / 'train-00099').exists()
  assert not (out / 'units').exists()
  assert not partial.exists()


def test_full_disk_is_one_sentence_and_leaves_nothing(tmp_path):
  letters = random.Random(0).choices('abcdefghijklmnopqrstuvwxyz', k=10**6)
  (tmp_path / 'a.txt').write_text(''.join(letters))
  out = tmp_path / 'out'
  # The kernel refuses to let a file grow, as it does when a disk is full.
  status = _run(
    'import resource; from pipelines import errors, prepare\n'
    'resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n'
    'try:\n'
    f'  prepare.prepare({str(tmp_path / "a.txt")!r}, {str(out)!r})\n'
    'except errors.DataError as error:\n'
    '  print(error); raise SystemExit(error.exit_code)\n'
  )
  assert status.returncode == 3, status.stderr
  assert 'large enough' in status.stdout
  assert os.strerror(errno.EFBIG) in status.stdout
  assert len(status.stdout.splitlines()) == 1
  assert [p.name for p in tmp_path.iterdir()] == ['a.txt']


def test_disk_that_fills_up_midway_is_one_sentence(
  tmp_path, corpus, monkeypatch
):
  class FullDisk:
    def __init__(self, path, options):
      self._records = 0

    def write(self, record):
      self._records += 1
      if self._records == 2:
        raise RuntimeError('write() failed: No space left on device')

    def close(self):
      raise AssertionError('a shard that failed is not finished')

  monkeypatch.setattr(bundle.array_record_module, 'ArrayRecordWriter', FullDisk)
  _refused(
    'disk full.*No space left', 3, str(corpus), tmp_path / 'out', **SMALL
  )
  monkeypatch.undo()
  # What was read need not be read again.
  monkeypatch.setattr(units.tokenize, 'encode', None)
  made = prepare.prepare(str(corpus), tmp_path / 'out', **SMALL)
  assert manifest.verify(tmp_path / 'out') == made


@pytest.mark.parametrize(
  'number, words',
  [(errno.EROFS, 'Read-only file system'), (errno.EACCES, 'Permission denied')],
)
def test_folder_that_cannot_be_written_is_one_sentence(
  tmp_path, corpus, monkeypatch, number, words
):
  def mkdir(path, *args, **kwargs):
    raise OSError(number, os.strerror(number), str(path))

  monkeypatch.setattr(pathlib.Path, 'mkdir', mkdir)
  with pytest.raises(errors.DataError) as caught:
    prepare.prepare(str(corpus), tmp_path / 'out')
  assert caught.value.exit_code == 3
  assert str(caught.value) == (
    f'Preparing --output={tmp_path}/out failed ({words}: {tmp_path}/out'
    '.partial); make that place readable, writable and large enough, or choose '
    'another.'
  )


def test_two_processes_do_not_prepare_the_same_folder(tmp_path, corpus):
  partial = tmp_path / 'out.partial'
  partial.mkdir()
  with open(partial / 'lock', 'w') as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    _refused('in use by another process', 2, str(corpus), tmp_path / 'out')
  assert partial.exists()


def test_preparing_imports_neither_grain_nor_jax():
  status = _run(
    'import sys; from pipelines import prepare\n'
    'raise SystemExit(bool({"grain", "jax"} & set(sys.modules)))'
  )
  assert status.returncode == 0
