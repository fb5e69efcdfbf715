# SPDX-License-Identifier: Apache-2.0
"""Copies make way for others: in order, and never while they are used."""

import collections
import contextlib
import errno
import fcntl
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys

import fsspec
import numpy as np
import pytest

from pipelines import errors, loader, sources
from pipelines.shards import copies, manifest, room

pytestmark = pytest.mark.usefixtures('cache')

ROOT = pathlib.Path(__file__).parents[3]
Usage = collections.namedtuple('Usage', 'total used free')


def _shards(url):
  return manifest.read(url).splits['train'].shards


def _take(url, shard):
  return copies.take(url, shard.name, shard.sha256)


def _use(url, *shards):
  for shard in shards:
    _take(url, shard)[1].close()


def _names(*shards):
  return [shard.name for shard in shards]


@pytest.fixture
def kept(cache):
  """A function: names of the shards that are here."""
  place = 'zaya_jax/shards/*/*.array_record'
  return lambda: sorted(path.name for path in cache.glob(place))


def _keep(*shards):
  """As much room as these need."""
  copies.keep_within(sum(shard.bytes for shard in shards) / 1e9)


def test_what_was_used_longest_ago_makes_way(url, kept):
  a, b, c, d, *_ = _shards(url)
  _keep(a, b, c)
  _use(url, a, b, c, a, d)
  assert kept() == _names(a, c, d)
  _use(url, b)
  assert kept() == _names(a, b, d)


def test_without_a_limit_all_stay(url, kept):
  _use(url, *_shards(url))
  assert kept() == sorted(_names(*_shards(url)))


def _in_use_stays(url, kept):
  a, b, c, *_ = _shards(url)
  _keep(a, b)
  path, stamp = _take(url, a)
  with stamp:
    content = path.read_bytes()
    _use(url, b, c, b)
    assert kept() == _names(a, b)
    assert path.read_bytes() == content
    assert hashlib.sha256(content).hexdigest() == a.sha256
  _use(url, c)
  assert kept() == _names(b, c)


def test_what_is_in_use_stays(url, kept):
  _in_use_stays(url, kept)


def test_what_is_in_use_would_go_without_its_lock(url, kept, monkeypatch):
  monkeypatch.setattr(room.fcntl, 'flock', lambda *args: None)
  with pytest.raises(AssertionError):
    _in_use_stays(url, kept)


def _started(program, *args, **kwargs):
  path = os.pathsep.join([str(ROOT), *sys.path])
  return subprocess.Popen(
    [sys.executable, '-c', program, *map(str, args)],
    env={**os.environ, 'PYTHONPATH': path},
    stdout=subprocess.PIPE,
    text=True,
    **kwargs,
  )


USER = """
import fcntl, sys, time
stamp = open(sys.argv[1])
fcntl.flock(stamp, fcntl.LOCK_SH)
print('locked', flush=True)
time.sleep(60)
"""


def test_what_another_process_uses_stays_until_it_is_killed(url, kept):
  a, b, c, *_ = _shards(url)
  _use(url, a)
  user = _started(USER, copies.folder(url) / room.STAMPS / a.name)
  with user:
    assert user.stdout.readline() == 'locked\n'
    _keep(a)
    _use(url, b)
    assert kept() == _names(a, b)  # More than there is room for, but in use.
    _use(url, c)
    assert kept() == _names(a, c)
    user.kill()
  _use(url, b)
  assert kept() == _names(b)


def test_limit_holds_while_a_split_is_read(shards, url, kept):
  found = _shards(url)
  _keep(*found[:2])
  data = manifest.read(url)
  there = sources.WindowSource(url, 'train', 16, data)
  here = sources.WindowSource(shards, 'train', 16, data)
  rng = np.random.default_rng(0)
  for index in rng.integers(len(here), size=60):
    np.testing.assert_array_equal(there[index], here[index])
    assert len(kept()) <= 2
  here.close()
  there.close()
  assert len(found) > 4


def test_threads_read_right_in_a_small_room(shards, url, kept):
  a, b, *_ = _shards(url)
  _keep(a, b)
  settings = {'seq_len': 16, 'batch_size': 4, 'seed': 1}
  with (
    loader.make_train_loader([url], **settings) as there,
    loader.make_train_loader([str(shards)], **settings) as here,
  ):
    for _ in range(20):
      one, other = next(there), next(here)
      np.testing.assert_array_equal(one['tokens'], other['tokens'])
  _use(url, a)
  assert len(kept()) <= 2


def test_copy_that_is_coming_has_its_room(url, kept):
  a, b, c, *_ = _shards(url)
  _keep(a, b)
  _use(url, c)
  folder = copies.folder(url)
  with open(folder / room.STAMPS / a.name, 'a') as stamp:
    fcntl.flock(stamp, fcntl.LOCK_SH)
    with room.claimed(folder / a.name, a.bytes, lambda: None):
      assert kept() == _names(c)
      _use(url, b)
      assert kept() == _names(b)


def test_what_a_killed_process_left_behind_goes_first(url, kept, cache):
  a, b, c, *_ = _shards(url)
  _keep(a, b)
  folder = copies.folder(url)
  (folder / room.STAMPS / a.name).touch()
  (folder / f'{a.name}.partial').write_bytes(b'half of it')
  with open(folder / f'{a.name}.room', 'wb') as claim:
    claim.truncate(a.bytes)
  _use(url, b, c)
  assert kept() == _names(b, c)
  assert not list(cache.rglob('*.partial')) + list(cache.rglob('*.room'))


@pytest.mark.parametrize(
  'total, free, age, stays',
  [
    (10**9, 5 * 10**7, -1, False),
    (10**9, 6 * 10**7, -1, True),
    (10**13, 10**10, -1, False),
    (10**13, 10**10 + 10**7, -1, True),
    # Of this run, as long as there is any room.
    (10**9, 5 * 10**7, 1, True),
    (10**9, 10, 1, False),
  ],
)
def test_copies_of_earlier_runs_leave_some_of_the_disk_free(
  url, kept, monkeypatch, total, free, age, stays
):
  a, b, *_ = _shards(url)
  path, stamp = _take(url, a)
  stamp.close()
  time = room._BEGAN + age
  os.utime(path.parent / room.STAMPS / a.name, ns=(time, time))
  usage = Usage(total, total - free, free)
  monkeypatch.setattr(room.shutil, 'disk_usage', lambda path: usage)
  _use(url, b)
  assert kept() == (_names(a, b) if stays else _names(b))


def test_all_copies_are_looked_at_only_when_something_must_go(
  url, kept, monkeypatch
):
  found, looks = _shards(url), []
  _keep(*found[:-1])
  find = room._find
  monkeypatch.setattr(room, '_find', lambda root: looks.append(1) or find(root))
  _use(url, *found[:-1])
  assert len(looks) == 1  # Nobody had looked yet.
  (copies.root() / 'room.lock').write_text('123')  # Not all that was written.
  _use(url, found[-1])
  assert len(looks) == 2 and kept() == sorted(_names(*found[1:]))


def test_full_disk_is_not_searched_for_each_copy(url, kept, monkeypatch):
  a, b, c, d, *_ = _shards(url)
  usage, looks = Usage(10**9, 10**9 - 10**7, 10**7), []
  monkeypatch.setattr(room.shutil, 'disk_usage', lambda path: usage)
  find = room._find
  monkeypatch.setattr(room, '_find', lambda root: looks.append(1) or find(root))
  _use(url, a, b, c, d)
  assert len(looks) == 1 and kept() == _names(a, b, c, d)


def _fill(cache, copies, stamps=0):
  """A folder of copies of ten bytes, and more stamps that have none."""
  folder = cache / 'zaya_jax' / 'shards' / 'web-1'
  (folder / room.STAMPS).mkdir(parents=True)
  for i in range(max(copies, stamps)):
    stamp = folder / room.STAMPS / str(i)
    stamp.touch()
    os.utime(stamp, ns=(i, i))
    if i < copies:
      (folder / str(i)).write_bytes(b'x' * 10)
  return folder


def _files(folder):
  return {path.name for path in folder.iterdir() if path.is_file()}


@pytest.mark.parametrize('stamps', [100, 5000])
def test_of_many_copies_some_make_way_at_once(cache, monkeypatch, stamps):
  monkeypatch.setattr(room, '_most_bytes', 1000)
  folder = _fill(cache, 100, stamps)
  with room.claimed(folder / 'new', 10, lambda: None):
    assert _files(folder) == {str(i) for i in range(3, 100)} | {'new.room'}
  assert room.give_way(folder.parent, 10, lambda: None)
  assert _files(folder) == {str(i) for i in range(5, 100)}


def _leave(folder, name, partial=b'half of it'):
  """What a killed process leaves behind."""
  (folder / room.STAMPS / name).touch()
  (folder / f'{name}.partial').write_bytes(partial)
  with open(folder / f'{name}.room', 'wb') as claim:
    claim.truncate(10)


@pytest.mark.parametrize('name', ['new', 'other'])
def test_what_was_left_behind_takes_no_room_of_copies(cache, monkeypatch, name):
  folder = _fill(cache, 8)

  def usage(path):  # Of a disk of a hundred bytes, ten of them something else.
    used = sum((folder / file).stat().st_size for file in _data(folder))
    return Usage(100, used + 10, 100 - used - 10)

  monkeypatch.setattr(room.shutil, 'disk_usage', usage)
  monkeypatch.setattr(room, '_older_are_gone', True)
  _leave(folder, name)
  assert usage(folder).free == 0
  with open(folder / room.STAMPS / 'new', 'a') as stamp:
    fcntl.flock(stamp, fcntl.LOCK_SH)
    with room.claimed(folder / 'new', 10, lambda: None):
      assert _files(folder) == {*map(str, range(8)), 'new.room'}


def _data(folder):
  """A claim takes no blocks."""
  return {name for name in _files(folder) if not name.endswith('.room')}


def test_claim_that_was_left_beside_a_copy_goes_alone(cache, monkeypatch):
  monkeypatch.setattr(room, '_most_bytes', 1000)
  folder = _fill(cache, 2)
  (folder / room.STAMPS / '1').write_text('its version')
  _leave(folder, '1', b'')
  with room.claimed(folder / 'new', 10, lambda: None):
    assert _files(folder) == {'0', '1', 'new.room'}
  assert (folder / room.STAMPS / '1').read_text() == 'its version'


def test_folder_that_is_removed_by_hand_is_nobody_s_fault(url, kept):
  a, b, c, *_ = _shards(url)
  _keep(a)
  other = url + '-other'
  fs = fsspec.filesystem('memory')
  fs.copy(url, other, recursive=True)
  _use(other, a)
  copy = room._find(copies.root())[0]
  shutil.rmtree(copies.folder(other))
  assert not room._removed(copy)
  _use(url, a, b)
  assert kept() == _names(b)


def test_full_disk_takes_a_copy_in_place_of_older_ones(url, kept, monkeypatch):
  a, b, c, *_ = _shards(url)
  _use(url, a, b)
  fs = fsspec.filesystem('memory')
  get = fs.get_file

  def full(*args):
    if kept():
      raise OSError(errno.EDQUOT, 'Disk quota exceeded')
    get(*args)

  monkeypatch.setattr(fs, 'get_file', full)
  _use(url, c)
  assert kept() == _names(c)
  _, stamp = _take(url, c)
  with stamp, pytest.raises(errors.DataError, match='make room') as caught:
    _use(url, a)
  assert caught.value.exit_code == 3
  assert kept() == _names(c)


def test_full_disk_takes_a_stamp_in_place_of_older_copies(
  url, kept, monkeypatch
):
  a, b, *_ = _shards(url)
  _use(url, a)
  remember = copies._remember

  def full(*args):
    if len(kept()) > 1:
      raise OSError(errno.ENOSPC, 'No space left on device')
    remember(*args)

  monkeypatch.setattr(copies, '_remember', full)
  _use(url, b)
  assert kept() == _names(b)
  _, stamp = _take(url, b)
  with stamp, pytest.raises(errors.DataError, match='make room'):
    _use(url, a)


@pytest.mark.parametrize('place', ['copied', 'copying', '.room'])
def test_full_disk_takes_a_lock_in_place_of_older_copies(
  url, kept, monkeypatch, place
):
  a, b, *_ = _shards(url)
  _use(url, a)

  def full(path, *args):
    if place in str(path) and b.name in str(path) and kept():
      raise OSError(errno.ENOSPC, 'No space left on device')
    return open(path, *args)

  monkeypatch.setattr(copies, 'open', full, raising=False)
  monkeypatch.setattr(room, 'open', full, raising=False)
  _use(url, b)
  assert kept() == _names(b)


@pytest.mark.parametrize('name', ['manifest.json', 'web-'])
def test_full_disk_takes_another_folder_in_place_of_older_copies(
  url, kept, monkeypatch, name
):
  a, *_ = _shards(url)
  _use(url, a)
  other = url + '-other'
  fsspec.filesystem('memory').copy(url, other, recursive=True)
  full = _full_once(kept, pathlib.Path.write_bytes, name)
  monkeypatch.setattr(pathlib.Path, 'write_bytes', full)
  monkeypatch.setattr(
    pathlib.Path, 'mkdir', _full_once(kept, pathlib.Path.mkdir, name)
  )
  assert manifest.read(other) and not kept()
  with pytest.raises(errors.DataError, match='make room'):
    monkeypatch.setattr(copies.store, 'replace', _raise_full)
    copies._folder.cache_clear()
    copies.folder(other)


def _full_once(kept, write, name):
  def full(path, *args, **kwargs):
    if name in path.name and kept():
      _raise_full()
    return write(path, *args, **kwargs)

  return full


def _raise_full(*args):
  raise OSError(errno.ENOSPC, 'No space left on device')


READER = """
import hashlib, os, random, signal, sys
from pipelines.shards import copies, manifest
url, seed, most_gb = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
copies.keep_within(most_gb)
if seed == 0:  # Is killed within its second copy.
  from fsspec.implementations import local
  get, calls = local.LocalFileSystem.get_file, []
  def die(fs, there, here, **kwargs):
    calls.append(there)
    get(fs, there, here, **kwargs)
    if len(calls) == 2:
      os.kill(os.getpid(), signal.SIGKILL)
  local.LocalFileSystem.get_file = die
shards = manifest.read(url).splits['train'].shards
draw = random.Random(seed)
for _ in range(50):
  shard = draw.choice(shards)
  with copies.held(url, shard.name, shard.sha256) as path:
    content = path.read_bytes()
    assert hashlib.sha256(content).hexdigest() == shard.sha256
    assert path.exists()
print('read')
"""


def test_processes_share_a_small_room(shards, kept):
  url = f'file://{shards}'
  a, b, c, *_ = _shards(url)
  most = (a.bytes + b.bytes) / 1e9
  with contextlib.ExitStack() as ended:
    readers = [
      ended.enter_context(_started(READER, url, seed, most))
      for seed in range(4)
    ]
    said = [reader.communicate(timeout=60)[0] for reader in readers]
  assert said == ['', 'read\n', 'read\n', 'read\n']
  assert [reader.returncode for reader in readers] == [-9, 0, 0, 0]
  _keep(a, b)
  _use(url, c)
  assert len(kept()) <= 2
