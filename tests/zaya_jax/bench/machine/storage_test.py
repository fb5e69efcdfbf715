# SPDX-License-Identifier: Apache-2.0
"""The disk: what is read and written, and nothing left behind."""

import pytest

from zaya_jax import config as config_lib
from zaya_jax.bench.machine import storage
from zaya_jax.bench.sweep import frame as frame_lib

SIZE = 2**20


@pytest.fixture
def path(tmp_path):
  path = tmp_path / 'file'
  storage.write(str(path), SIZE)
  assert path.stat().st_size == SIZE
  return str(path)


@pytest.mark.parametrize('threads', [1, 3])
def test_all_bytes_are_read(path, threads):
  with storage.Reader(path, threads) as reader:
    assert reader.in_order() == SIZE
    assert reader.scattered(2**14, 7) == 7 * 2**14


def test_places_are_blocks_of_the_file_and_differ(path, monkeypatch):
  seen = []
  with storage.Reader(path, 2) as reader:
    monkeypatch.setattr(
      reader, '_read', lambda size, places: seen.extend(places) or 0
    )
    reader.scattered(2**16, 64)
    first = sorted(seen)
    seen.clear()
    reader.scattered(2**16, 64)
  assert all(p % 2**16 == 0 and 0 <= p < SIZE for p in first)
  assert len(first) == 64 and sorted(seen) != first


def test_file_system_without_direct_reads_is_told(path, monkeypatch):
  monkeypatch.setattr(storage.os, 'O_DIRECT', 0, raising=False)
  with storage.Reader(path, 1) as reader:
    assert not reader.direct and reader.in_order() == SIZE


def test_run_measures_all_and_leaves_nothing(tmp_path):
  frame = frame_lib.Frame(minutes=10, repeats=1)
  bench = config_lib.BenchConfig(max_bytes=SIZE)
  storage.run(
    frame,
    config_lib.Config(mode='bench', bench=bench, run_dir=str(tmp_path)),
  )
  assert {p.case for p in frame.points} == set(storage.CASES)
  scattered = [p for p in frame.points if p.case == 'scattered read']
  assert {p.devices for p in scattered} == set(storage.THREADS)
  assert {p.size for p in scattered} == set(storage.BLOCKS)
  assert not list(tmp_path.iterdir())


def test_other_bytes_than_those_written_are_noticed(path):
  with open(path, 'r+b') as file:
    file.seek(2**16)
    file.write(bytes(64))
  with (
    storage.Reader(path, 1) as reader,
    pytest.raises(frame_lib.WrongError, match='read at 65,536'),
  ):
    reader._read(2**14, range(0, SIZE, 2**14))
