# SPDX-License-Identifier: Apache-2.0
"""Hashes are compared once, and again when a file is not the same."""

import os
import shutil

import pytest

from pipelines import errors
from pipelines.shards import manifest
from pipelines.sources import stamp


@pytest.fixture
def hashed(monkeypatch):
  """Names of the files that are hashed from now on."""
  names = []
  whole = manifest.file_sha256

  def spy(path):
    names.append(path.name)
    return whole(path)

  monkeypatch.setattr(manifest, 'file_sha256', spy)
  return names


def one(shards):
  return sorted(shards.glob('train-*.array_record'))[0]


def test_all_is_hashed_at_the_first_opening_and_nothing_later(shards, hashed):
  data = stamp.open_folder(shards)
  assert sorted(hashed) == sorted(manifest.hashes(data))
  assert one(shards).name in hashed
  hashed.clear()
  assert stamp.open_folder(shards) == data
  assert hashed == []


def test_what_was_written_anew_is_hashed_again(shards, hashed):
  stamp.open_folder(shards)
  hashed.clear()
  content = one(shards).read_bytes()
  one(shards).write_bytes(content)
  os.utime(one(shards), ns=(1, 1))
  stamp.open_folder(shards)
  assert hashed == [one(shards).name]


def test_other_shard_of_the_same_size_and_time_is_refused(shards):
  stamp.open_folder(shards)
  path = one(shards)
  content, time = bytearray(path.read_bytes()), path.stat().st_mtime_ns
  content[-1] ^= 1
  other = path.with_suffix('.other')
  other.write_bytes(content)
  os.utime(other, ns=(time, time))
  other.replace(path)  # It has another number.
  with pytest.raises(errors.DataError, match=f'{path.name} differs') as caught:
    stamp.open_folder(shards)
  assert caught.value.exit_code == 3
  with pytest.raises(errors.DataError, match=f'{path.name} differs'):
    stamp.open_folder(shards)  # It is not remembered as compared.


def test_size_and_name_are_looked_at_in_spite_of_a_stamp(shards):
  stamp.open_folder(shards)
  with open(one(shards), 'ab') as file:
    file.write(b'x')
  with pytest.raises(errors.DataError, match='has .* bytes'):
    stamp.open_folder(shards)


@pytest.mark.parametrize(
  'content', ['', '{', '[]', '{"manifest": "x", "files": {}}', '{"files": 1}']
)
def test_what_is_no_stamp_of_this_folder_counts_for_nothing(
  shards, hashed, content
):
  stamp.open_folder(shards)
  hashed.clear()
  (shards / stamp.FILE_NAME).write_text(content)
  stamp.open_folder(shards)
  assert one(shards).name in hashed


def test_copied_folder_is_hashed_though_times_are_kept(
  tmp_path, shards, hashed
):
  stamp.open_folder(shards)
  hashed.clear()
  shutil.copytree(shards, tmp_path / 'copy')
  stamp.open_folder(tmp_path / 'copy')
  assert one(shards).name in hashed


def test_folder_that_cannot_be_written_to_is_read(shards, monkeypatch):
  def fail(*args, **kwargs):
    raise OSError(30, 'Read-only file system')

  monkeypatch.setattr('pathlib.Path.write_bytes', fail)
  data = stamp.open_folder(shards)
  assert data.splits and stamp.unverified(shards)
