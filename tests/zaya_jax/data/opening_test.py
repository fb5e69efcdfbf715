# SPDX-License-Identifier: Apache-2.0
"""Folders of shards, opened by several processes."""

import pytest

from pipelines import prepare
from pipelines.shards import manifest
from pipelines.sources import stamp
from zaya_jax.data import opening
from zaya_jax.runtime import processes


@pytest.fixture
def folder(tmp_path):
  (tmp_path / 'text').write_text('A text. ' * 2000)
  prepare.prepare(
    str(tmp_path / 'text'), tmp_path / 'a', record_tokens=64, shard_tokens=640
  )
  return tmp_path / 'a'


@pytest.fixture
def as_process(monkeypatch):
  """A function: opens a folder as one of three; what it hashes, and says."""
  said: list = []

  def call(folder, number, **how):
    here: list = []

    def first_says(compute):
      if number == 0:
        said.append(compute())
        return said[-1]
      return said[len(here)]

    def compare(directory, names):
      here.append(list(names))

    monkeypatch.setattr(processes, 'process', lambda: number)
    monkeypatch.setattr(processes, 'processes', lambda: 3)
    monkeypatch.setattr(processes, 'first_says', first_says)
    monkeypatch.setattr(processes, 'barrier', lambda name: None)
    monkeypatch.setattr(stamp, 'compare', compare)
    data, notes = opening.manifests([str(folder)], **how)
    assert data == [manifest.read(folder)]
    return here[0], notes

  return call


def test_processes_divide_what_is_hashed(folder, as_process):
  shares = [as_process(folder, number)[0] for number in range(3)]
  names = [name for share in shares for name in share]
  assert sorted(names) == sorted(manifest.hashes(manifest.read(folder)))
  assert max(map(len, shares)) - min(map(len, shares)) <= 1
  assert stamp.unverified(folder) == []


def test_only_the_first_process_looks_at_files(folder, as_process, monkeypatch):
  stamp.open_folder(folder)
  as_process(folder, 0)
  monkeypatch.setattr(manifest, 'scan', None)
  assert as_process(folder, 1) == ([], [])


def test_all_is_hashed_again_where_it_is_asked_for(folder, as_process):
  stamp.open_folder(folder)
  share, _ = as_process(folder, 0, verify=True)
  assert len(share) == -(-len(manifest.hashes(manifest.read(folder))) // 3)


def test_stamp_that_cannot_be_kept_is_told(folder, as_process, monkeypatch):
  monkeypatch.setattr(stamp, 'write', lambda directory: False)
  _, [note] = as_process(folder, 0)
  assert str(folder) in note
