# SPDX-License-Identifier: Apache-2.0
"""Shards behind a URL are read as those of a folder are."""

import concurrent.futures
import errno
import os
import shutil

import fsspec
import numpy as np
import pytest

from pipelines import errors, loader
from pipelines.shards import copies, documents, manifest

pytestmark = pytest.mark.usefixtures('cache')


def _forget():
  """As another process does."""
  copies._folder.cache_clear()


def _local(url, shard):
  with copies.held(url, shard.name, shard.sha256) as path:
    return path


def _batches(folder, count=4):
  with loader.make_train_loader(
    [str(folder)], seq_len=16, batch_size=4, seed=1
  ) as batches:
    return [next(batches)['tokens'] for _ in range(count)]


def _first(shards):
  return manifest.read(shards).splits['train'].shards[0]


def test_batches_are_those_of_the_folder(shards, url):
  for one, other in zip(_batches(shards), _batches(url), strict=True):
    np.testing.assert_array_equal(one, other)
  here = next(iter(loader.eval_batches(shards, seq_len=16, batch_size=2)))
  there = next(iter(loader.eval_batches(url, seq_len=16, batch_size=2)))
  np.testing.assert_array_equal(here['tokens'], there['tokens'])


def test_only_what_is_read_is_copied(shards, url, cache):
  manifest.load(url)
  assert not list(cache.rglob('*.array_record'))
  shard = _first(url)
  _local(url, shard)
  found = cache.glob('zaya_jax/shards/*/*.array_record')
  assert [path.name for path in found] == [shard.name]
  assert not list(cache.rglob('*.partial'))
  listed = documents.Documents(url, manifest.read(url), 'train')
  expected = documents.Documents(shards, manifest.read(shards), 'train')
  assert listed.between(0, 50) == expected.between(0, 50)
  manifest.verify(url)
  assert manifest.exists(url) and not manifest.exists(f'{url}/nothing')


def test_a_file_is_copied_once_for_all_who_need_it(url, monkeypatch):
  shard, calls, copy = _first(url), [], copies._copy

  def counted(*args):
    calls.append(args)
    copy(*args)

  monkeypatch.setattr(copies, '_copy', counted)
  copies.folder(url)
  with concurrent.futures.ThreadPoolExecutor(8) as pool:
    paths = set(pool.map(lambda _: _local(url, shard), range(8)))
  assert len(calls) == len(paths) == 1


@pytest.mark.parametrize('damage', [b'', b'other'])
def test_damaged_copy_is_copied_again(url, damage):
  shard = _first(url)
  path = _local(url, shard)
  content = path.read_bytes()
  path.write_bytes(damage or content)  # Touched, or damaged.
  (path.parent / 'manifest.json').write_bytes(b'{')
  _forget()
  assert manifest.read(url)
  assert _local(url, shard).read_bytes() == content


def test_file_that_changed_there_is_refused(url):
  shard, fs = _first(url), fsspec.filesystem('memory')
  there = f'{url}/{shard.name}'
  fs.pipe_file(there, b'x' * shard.bytes)
  with pytest.raises(errors.DataError, match='changed since') as caught:
    _local(url, shard)
  assert caught.value.exit_code == 3 and there in str(caught.value)
  with pytest.raises(errors.DataError, match='differs'):
    _batches(url, 50)


@pytest.mark.parametrize(
  'content, why', [(b'x', 'has 1 bytes'), (None, 'miss')]
)
def test_sizes_are_looked_at_before_the_first_step(url, content, why):
  fs, there = fsspec.filesystem('memory'), f'{url}/{_first(url).name}'
  fs.rm(there)
  if content:
    fs.pipe_file(there, content)
  with pytest.raises(errors.DataError, match=why) as caught:
    manifest.load(url)
  assert caught.value.exit_code == 3


def test_another_manifest_is_another_folder(url):
  before = copies.folder(url)
  fs = fsspec.filesystem('memory')
  fs.pipe_file(
    f'{url}/manifest.json', fs.cat_file(f'{url}/manifest.json') + b' '
  )
  assert copies.folder(url) == before
  _forget()
  assert copies.folder(url) != before


def test_nothing_there_is_named():
  with pytest.raises(errors.DataError, match='manifest.json does') as caught:
    manifest.read('memory://nowhere/x')
  assert caught.value.exit_code == 2


def _raises(error):
  def function(*args, **kwargs):
    raise error

  return function


@pytest.mark.parametrize(
  'error, sentence, code',
  [
    (OSError(errno.ENOSPC, 'No space left on device'), 'make room, or', 3),
    (ConnectionResetError('reset by peer'), 'did not answer 7 times', 1),
    (FileNotFoundError('gone'), 'listed in manifest.json but missing', 3),
    (PermissionError('no key'), 'want of permission', 2),
  ],
)
def test_copy_that_fails_is_one_sentence(
  url, cache, monkeypatch, error, sentence, code
):
  shard, fs = _first(url), fsspec.filesystem('memory')
  monkeypatch.setattr(fs, 'get_file', _raises(error))
  with pytest.raises(errors.DataError, match=sentence) as caught:
    _local(url, shard)
  assert caught.value.exit_code == code
  assert not list(cache.rglob('*.partial'))


def test_cache_that_cannot_be_made_is_named(url, cache):
  cache.write_text('a file')
  with pytest.raises(errors.DataError, match='XDG_CACHE_HOME') as caught:
    copies.folder(url)
  assert caught.value.exit_code == 3


def test_shard_that_is_gone_from_the_store_is_named(url):
  shard = _first(url)
  there = f'{url}/{shard.name}'
  fsspec.filesystem('memory').rm(there)
  with pytest.raises(errors.DataError) as caught:
    _local(url, shard)
  assert caught.value.exit_code == 3
  assert str(caught.value) == (
    f'{there} is listed in manifest.json but missing; copy it there from the '
    'original, or prepare the data again.'
  )


def test_copy_that_vanishes_at_once_is_copied_again(url, monkeypatch):
  shard, copy = _first(url), copies._copy

  def vanishes(there, path, *args):
    copy(there, path, *args)
    path.unlink()

  with monkeypatch.context() as patched:
    patched.setattr(copies, '_copy', vanishes)
    assert not _local(url, shard).exists()
  assert _local(url, shard).exists()


@pytest.mark.parametrize(
  'number, sentence',
  [
    (errno.EDQUOT, 'make room, or name a larger disk'),
    (errno.ENOSYS, 'locks do not work there: .*name a disk of this machine'),
    (errno.EOPNOTSUPP, 'locks do not work there'),
    (errno.ENOLCK, 'locks do not work there'),
    (errno.EACCES, 'denied.; name a folder that can be written'),
  ],
)
def test_advice_is_that_for_the_error(url, monkeypatch, number, sentence):
  shard = _first(url)
  error = OSError(number, os.strerror(number))
  monkeypatch.setattr(copies.fcntl, 'flock', _raises(error))
  with pytest.raises(errors.DataError, match=sentence) as caught:
    _local(url, shard)
  assert caught.value.exit_code == 3
  assert 'XDG_CACHE_HOME' in str(caught.value)


def test_folder_that_was_removed_meanwhile_is_named(url):
  shard = _first(url)
  shutil.rmtree(copies.folder(url))
  with pytest.raises(errors.DataError, match='removed while') as caught:
    _local(url, shard)
  assert caught.value.exit_code == 1
