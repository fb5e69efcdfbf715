# SPDX-License-Identifier: Apache-2.0
"""Copies of parts in the folder of one process."""

import pytest

from zaya_jax.checkpoint.writing import copies


def test_step_that_is_done_again_replaces_its_copy(tmp_path):
  for content in (b'of a past that is undone', b'new'):
    parts = {0: lambda file, content=content: file.write(content)}
    copies.write(str(tmp_path), {'step': 8}, parts)
  assert (tmp_path / '8.0' / copies.FILE).read_bytes() == b'new'


def make(holder, *names):
  for name in names:
    (holder / name).mkdir(parents=True)
    (holder / name / copies.FILE).touch()


def test_only_copies_make_room_for_others(tmp_path):
  make(tmp_path, '2.0', '4.0', '4.1.partial', '1.keep', '3.0.keep', '5.0')
  (tmp_path / '6.0').mkdir()
  (tmp_path / '6.0' / 'notes').touch()
  (tmp_path / '7.0').symlink_to(tmp_path / '1.keep')
  (tmp_path / 'stray').touch()
  (tmp_path / '9.0').touch()
  mine = ['1.keep', '3.0.keep', '6.0', '7.0', '9.0', 'stray']
  assert copies.strangers(str(tmp_path)) == mine
  copies.write(str(tmp_path), {'step': 8}, {0: lambda file: file.write(b'8')})
  there = sorted(path.name for path in tmp_path.iterdir())
  assert there == sorted([*mine, '5.0', '8.0'])
  copies.clear(str(tmp_path))
  assert sorted(path.name for path in tmp_path.iterdir()) == mine
  assert (tmp_path / '1.keep' / copies.FILE).exists()


def test_failed_copy_takes_nothing_but_itself_away(tmp_path):
  make(tmp_path, '1.keep', '2.0')

  def fail(_):
    raise OSError(28, 'No space left on device')

  with pytest.raises(OSError, match='No space'):
    copies.write(str(tmp_path), {'step': 4}, {0: fail})
  assert sorted(path.name for path in tmp_path.iterdir()) == ['1.keep', '2.0']


def test_empty_folder_goes_with_the_last_copy(tmp_path):
  make(tmp_path, '0/2.0')
  copies.clear(str(tmp_path / '0'))
  copies.clear(str(tmp_path / '0'))
  assert not list(tmp_path.iterdir())


def test_stray_file_among_the_folders_of_processes_is_passed_over(tmp_path):
  copies.write(str(tmp_path / '0'), {'step': 8}, {0: lambda file: None})
  (tmp_path / 'notes').touch()
  (tmp_path / '0' / 'notes').touch()
  assert [facts['step'] for _, facts in copies.sealed(str(tmp_path))] == [8]
