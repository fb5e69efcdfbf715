# SPDX-License-Identifier: Apache-2.0

import hashlib
import json
import os
import shutil

import pytest

from pipelines import errors, tokenizer, typed_json
from pipelines.shards import documents, manifest
from tests.support import disk


def _shard(shards, index=0):
  return sorted(shards.glob('train-*.array_record'))[index]


def _flip(path, position):
  content = bytearray(path.read_bytes())
  content[position] ^= 1
  path.write_bytes(content)


def _refused(function, shards, sentence):
  with pytest.raises(errors.DataError, match=sentence) as caught:
    function(shards)
  assert caught.value.exit_code == 3
  return str(caught.value)


def test_whole_folder_is_accepted(shards):
  data = manifest.verify(shards)
  assert data == manifest.load(shards)
  assert len(data.splits['train'].shards) > 1


@pytest.mark.parametrize('what', ['size', 'time', 'file'])
def test_manifest_that_has_changed_is_read_again(shards, what):
  path = shards / manifest.FILE_NAME
  manifest.load(shards)  # Known to this process from now on.
  content, before = path.read_bytes(), path.stat()
  if what == 'file':  # Of the same size and time.
    path.rename(path.with_name('manifest.old'))
  path.write_bytes(b'?' * (len(content) - (what == 'size')))
  after = before.st_mtime_ns + (what == 'time')
  os.utime(path, ns=(before.st_atime_ns, after))
  _refused(manifest.load, shards, 'damaged')


def test_missing_shard_is_named(shards):
  path = _shard(shards)
  path.unlink()
  assert path.name in _refused(manifest.load, shards, 'missing')


def test_truncated_shard_is_named(shards):
  path = _shard(shards)
  path.write_bytes(path.read_bytes()[:-1])
  assert path.name in _refused(manifest.load, shards, 'has .* bytes')


def test_extra_shard_is_named(shards):
  extra = shards / 'train-00007-of-00008.array_record'
  shutil.copy(_shard(shards), extra)
  assert extra.name in _refused(manifest.load, shards, 'is not listed')


@pytest.mark.parametrize('position', [0, 100, -1])
def test_flipped_bit_is_found_by_verify(shards, position):
  path = _shard(shards, 1)
  _flip(path, position)
  manifest.load(shards)
  assert path.name in _refused(manifest.verify, shards, 'sha256')


@pytest.mark.parametrize('name', ['train-*.documents', 'files.jsonl'])
def test_harm_to_what_lists_documents_is_found(shards, name):
  path = max(shards.glob(name), key=lambda p: p.stat().st_size)
  _flip(path, 5)
  manifest.load(shards)
  assert path.name in _refused(manifest.verify, shards, 'sha256')
  path.write_bytes(path.read_bytes()[:-1])
  assert path.name in _refused(manifest.load, shards, 'has .* bytes')
  path.unlink()
  assert path.name in _refused(manifest.load, shards, 'missing')


@pytest.mark.parametrize('version', [1, 2])
def test_older_formats_are_read(shards, version):
  path = shards / manifest.FILE_NAME
  content = json.loads(path.read_text())
  del content['sha256'], content['files']
  for split in content['splits'].values():
    for shard in split['shards']:
      del shard['documents'], shard['documents_sha256']
  content['format_version'] = version
  old = typed_json.build(manifest.Manifest, content)
  for name in [*shards.glob('*.documents'), shards / 'files.jsonl']:
    name.unlink()
  manifest.write(old, shards)
  assert manifest.verify(shards) == old
  assert not documents.Documents(shards, old, 'train').known
  assert documents.Documents(shards, old, 'train').between(0, 100) == []


def test_swapped_shards_are_found_by_verify(shards):
  one, other = _shard(shards, 0), _shard(shards, 1)
  assert one.stat().st_size == other.stat().st_size
  content = one.read_bytes()
  one.write_bytes(other.read_bytes())
  other.write_bytes(content)
  assert one.name in _refused(manifest.verify, shards, 'exchanged')


def test_hash_is_of_what_the_file_is_now_though_its_size_stays(tmp_path):
  path, other = tmp_path / 'file', tmp_path / 'other'

  def check(content, time):
    os.utime(path, ns=(time, time))
    expected = hashlib.sha256(content).hexdigest()
    assert manifest.file_sha256(path) == expected

  path.write_bytes(b'one')
  check(b'one', 1)
  path.write_bytes(b'two')
  check(b'two', 2)
  other.write_bytes(b'six')
  os.replace(other, path)  # With the time of the one before, as by rsync.
  check(b'six', 2)


def test_manifest_is_on_disk_when_it_is_written(shards, monkeypatch):
  data = manifest.load(shards)
  events = disk.record(monkeypatch)
  manifest.write(data, shards)
  assert ('fsync', str(shards / manifest.FILE_NAME)) in events


def test_shares_of_verify_cover_every_shard(shards):
  data = manifest.load(shards)
  _flip(shards / data.splits['val'].shards[0].name, 50)
  caught = 0
  for part in range(3):
    try:
      manifest.verify(shards, part=part, parts=3)
    except errors.DataError:
      caught += 1
  assert caught == 1


def test_symbolic_link_is_refused(shards, tmp_path):
  path = _shard(shards)
  path.rename(tmp_path / 'elsewhere')
  path.symlink_to(tmp_path / 'elsewhere')
  _refused(manifest.load, shards, 'symbolic link')


@pytest.mark.parametrize('name', ['../x', '/etc/passwd', 'a/b', '..', ''])
def test_name_outside_the_folder_is_refused(shards, name):
  path = shards / manifest.FILE_NAME
  content = json.loads(path.read_text())
  content['splits']['train']['shards'][0]['name'] = name
  # Even with a checksum that fits.
  del content['sha256']
  content['sha256'] = typed_json.build(manifest.Manifest, content).sha256
  path.write_text(json.dumps(content))
  _refused(manifest.load, shards, 'leads out|missing')


def test_every_flipped_bit_of_the_manifest_is_found(shards):
  path = shards / manifest.FILE_NAME
  original = path.read_bytes()
  meaning = json.loads(original)
  for position in range(0, len(original), 7):
    _flip(path, position)
    try:
      same = json.loads(path.read_bytes()) == meaning
    except ValueError:
      same = False
    if not same:  # A tab for a space changes nothing.
      _refused(manifest.load, shards, 'manifest.json')
    path.write_bytes(original)


@pytest.mark.parametrize(
  'content',
  ['', '{', '[]', 'null', '{"sha256": 1}', '[' * 100_000, '{"a": NaN}'],
)
def test_damaged_manifest_is_refused(shards, content):
  (shards / manifest.FILE_NAME).write_text(content)
  _refused(manifest.load, shards, 'is damaged')


def test_other_format_version_is_named(shards):
  path = shards / manifest.FILE_NAME
  content = json.loads(path.read_text())
  path.write_text(json.dumps({**content, 'format_version': 9}))
  _refused(manifest.load, shards, 'format version 9')


def test_folder_without_manifest_is_refused(tmp_path):
  _refused(manifest.load, tmp_path, 'manifest.json is missing')


def test_tokenizer_of_the_shards_is_found(shards):
  assert manifest.load_tokenizer(shards).name == 'bytes'


def test_other_tokenizer_of_the_same_size_is_refused(shards):
  other = tokenizer.train_bpe(['abc'], 259)
  data = manifest.load(shards)
  assert other.vocab_size == data.vocab_size
  _refused(
    lambda _: data.check_tokenizer(other), shards, 'not the tokenizer of'
  )


def test_identity_follows_the_content(shards, tmp_path):
  copy = tmp_path / 'copy'
  shutil.copytree(shards, copy)
  assert manifest.load(copy).sha256 == manifest.load(shards).sha256


@pytest.mark.parametrize('in_place', [True, False])
def test_manifest_that_was_written_anew_is_read_anew(shards, in_place):
  """Of the same size: in place at another time, or another at the same time."""
  path = shards / 'manifest.json'
  manifest.read(shards)
  before, content = path.stat(), path.read_bytes().replace(b'train', b'brain')
  if in_place:
    path.write_bytes(content)
    os.utime(path, ns=(1, 1))
  else:
    (shards / 'new').write_bytes(content)
    (shards / 'new').replace(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
  with pytest.raises(errors.DataError, match='checksum'):
    manifest.read(shards)
