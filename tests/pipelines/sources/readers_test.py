# SPDX-License-Identifier: Apache-2.0
"""Open shards: few at a time, whatever is read."""

import concurrent.futures
import os
import pathlib
import resource
import subprocess
import sys

import pytest
from array_record.python import array_record_module

from pipelines.sources import readers

ROOT = pathlib.Path(__file__).parents[3]


@pytest.fixture
def paths(tmp_path):
  """Twenty shards of three records."""
  made = [str(tmp_path / f'{i:02d}.array_record') for i in range(20)]
  for i, path in enumerate(made):
    writer = array_record_module.ArrayRecordWriter(path, 'group_size:1')
    for j in range(3):
      writer.write(f'{i} {j}'.encode())
    writer.close()
  return made


def opened(paths):
  """How many of these files are open now."""
  fds = pathlib.Path('/proc/self/fd')
  there = [os.path.realpath(fd) for fd in fds.iterdir()]
  return sum(path in there for path in paths)


def test_only_the_last_ones_stay_open(paths):
  pool = readers.Readers(5)
  for _ in range(2):
    for i, path in enumerate(paths):
      assert pool.read(path, 1) == f'{i} 1'.encode()
      assert opened(paths) <= 5
  assert opened(paths[15:]) == 5
  pool.read(paths[15], 0)
  pool.read(paths[0], 0)
  assert opened([paths[15]]) == 1 and opened([paths[16]]) == 0


def test_threads_read_right_while_others_are_closed(paths):
  pool = readers.Readers(2)
  places = [(i, j) for j in range(3) for i in range(20)] * 5
  with concurrent.futures.ThreadPoolExecutor(8) as threads:
    found = threads.map(
      lambda place: pool.read(paths[place[0]], place[1]), places
    )
    assert list(found) == [f'{i} {j}'.encode() for i, j in places]
  assert opened(paths) <= 2


def test_folder_is_closed_alone(paths, tmp_path):
  pool = readers.Readers(5)
  pool.read(paths[0], 0)
  pool.forget(str(tmp_path / 'elsewhere'))
  assert opened(paths) == 1
  pool.forget(str(tmp_path))
  assert opened(paths) == 0


def test_locks_of_copies_are_open_files_too(paths):
  pool, stamps = readers.Readers(5), []

  def take(path):
    def call(let_go):
      stamps.append(open(f'{path}.stamp', 'w'))
      return pathlib.Path(path), stamps[-1]

    return call

  for path in paths[1:]:
    assert pool.read(path, 0, take(path))
  assert opened(paths) == 2
  assert [stamp.closed for stamp in stamps] == [True] * 17 + [False] * 2
  pool.read(paths[0], 0)
  pool.let_go()
  assert all(stamp.closed for stamp in stamps)
  assert opened(paths) == opened(paths[:1]) == 1


def test_file_that_was_put_back_is_read(paths):
  pool = readers.Readers(5)
  content = pathlib.Path(paths[0]).read_bytes()
  os.remove(paths[0])
  with pytest.raises(RuntimeError, match='No such file'):
    pool.read(paths[0], 0)
  pathlib.Path(paths[0]).write_bytes(content)
  assert pool.read(paths[0], 2) == b'0 2'


def test_record_that_is_not_there_is_an_error(paths):
  with pytest.raises(RuntimeError):
    readers.Readers(5).read(paths[0], 3)


def test_limit_of_the_process_is_kept(paths):
  """With `ulimit -n 40`, twenty threads read twenty shards."""
  program = f"""
import concurrent.futures, resource
resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
from pipelines.sources import readers
paths = {paths!r}
with concurrent.futures.ThreadPoolExecutor(4) as threads:
  for _ in range(3):
    list(threads.map(lambda path: readers.SHARED.read(path, 0), paths))
print(len(readers.SHARED._open))
"""
  done = subprocess.run(
    [sys.executable, '-c', program],
    env={**os.environ, 'PYTHONPATH': os.pathsep.join([str(ROOT), *sys.path])},
    capture_output=True,
    text=True,
    timeout=60,
  )
  assert done.stdout.strip() == '20', done.stderr


@pytest.mark.parametrize(
  'limit, most',
  [(256, 128), (1024, 256), (resource.RLIM_INFINITY, 256), (1, 1)],
)
def test_most_open_by_hand(monkeypatch, limit, most):
  monkeypatch.setattr(resource, 'getrlimit', lambda _: (limit, limit))
  assert readers.most_open() == most
