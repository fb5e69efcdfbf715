# SPDX-License-Identifier: Apache-2.0
"""Files of lowered steps: whole, or told to be damaged; and not too many."""

import os
import threading

import pytest

from zaya_jax.train.kept import files

ABOUT = {'measured': ['a', 'b']}
PROGRAM = bytes(range(256)) * 100


@pytest.fixture
def file(tmp_path):
  path = files.path(str(tmp_path), 'abc')
  files.write(path, ABOUT, PROGRAM)
  return path


def test_what_is_written_is_read(file):
  assert files.read(file) == (ABOUT, PROGRAM)
  assert file.stat().st_mode & 0o077 == 0
  assert file.parent.stat().st_mode & 0o077 == 0
  assert [file] == list(file.parent.iterdir())  # Nothing half is left.


def test_what_is_not_there_is_none(tmp_path):
  assert files.read(files.path(str(tmp_path), 'other')) is None


def test_no_damage_is_read(file):
  whole = file.read_bytes()
  places = [0, 5, len(whole) - len(PROGRAM) - 20, len(whole) - 1]
  for at in places:
    file.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    with pytest.raises(files.DamagedError, match='damaged'):
      files.read(file)
  for size in (0, 10, len(whole) - 1):
    file.write_bytes(whole[:size])
    with pytest.raises(files.DamagedError):
      files.read(file)
  for junk in (b'[]\n', b'{"sha256": 1, "about": []}\n', b'\xff' * 99):
    file.write_bytes(junk)
    with pytest.raises(files.DamagedError):
      files.read(file)
  file.write_bytes(whole)
  assert files.read(file) == (ABOUT, PROGRAM)


def test_writers_at_once_leave_one_whole_file(file):
  wrong = []

  def write(i):
    for _ in range(20):
      files.write(file, ABOUT | {'by': i}, PROGRAM)
      try:
        files.read(file)
      except files.DamagedError as error:
        wrong.append(error)

  threads = [threading.Thread(target=write, args=(i,)) for i in range(4)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  assert not wrong
  assert list(file.parent.iterdir()) == [file]


def test_where_nothing_can_be_written_nothing_is_left(tmp_path):
  (tmp_path / 'lowered').write_text('a file in the place of the folder')
  with pytest.raises(OSError):
    files.write(files.path(str(tmp_path), 'abc'), ABOUT, PROGRAM)


def test_what_was_used_longest_ago_is_removed(tmp_path):
  for i, used in enumerate((3, 1, 2)):
    path = files.path(str(tmp_path), str(i))
    files.write(path, {}, b'x' * 1000)
    os.utime(path, (used, used))
  size = path.stat().st_size
  files.prune(str(tmp_path), most_bytes=3 * size)
  assert len(os.listdir(tmp_path / 'lowered')) == 3
  files.prune(str(tmp_path), most_bytes=2 * size)
  assert sorted(os.listdir(tmp_path / 'lowered')) == ['0.step', '2.step']


def test_programs_of_jax_go_only_from_the_folder_that_is_ours(
  tmp_path, monkeypatch
):
  monkeypatch.setattr(files, '_OURS', str(tmp_path / 'ours'))
  for parent, left in (('ours', False), ('others', True)):
    folder = tmp_path / parent / 'compiled'
    folder.mkdir(parents=True)
    (folder / 'program-cache').write_bytes(b'x' * 1000)
    files.prune(str(folder), most_bytes=10)
    assert (folder / 'program-cache').exists() == left


def test_reading_is_use(tmp_path, file):
  other = files.path(str(tmp_path), 'other')
  files.write(other, ABOUT, PROGRAM)
  os.utime(file, (1, 1))
  os.utime(other, (2, 2))
  files.read(file)
  files.prune(str(tmp_path), most_bytes=file.stat().st_size)
  assert os.listdir(file.parent) == [file.name]
