# SPDX-License-Identifier: Apache-2.0
"""What of a folder of checkpoints is cleared away, and what never is."""

import os
import shutil

import pytest

from tests.support import disk
from zaya_jax.checkpoint import folders
from zaya_jax.checkpoint.writing import leftovers

# What Orbax and the saver make in the course of a save, by name.
OURS = [
  '7.unsealed', '7.unsealed.orbax-checkpoint-tmp', '7.trash',
  '7.orbax-checkpoint-tmp', '7.orbax-checkpoint-tmp-1700000000000000',
]  # fmt: skip
THEIRS = [
  '1.keep', '2.best', '2024.paper', '7.unsealed.keep', '7.trash.keep', '7.',
  '07.trash', '7.orbax-checkpoint-tmp-mine', 'x7.trash', '300', '7.tar',
]  # fmt: skip


def make(path, *names):
  for name in names or ('state', 'meta.orbax-checkpoint-tmp'):
    (path / name).mkdir(parents=True)
  (path / '_CHECKPOINT_METADATA').touch()


@pytest.mark.parametrize('name', OURS)
def test_what_a_killed_save_leaves_is_cleared_away(tmp_path, name):
  make(tmp_path / name)
  leftovers.clear(str(tmp_path))
  assert not os.listdir(tmp_path)


@pytest.mark.parametrize('name', THEIRS)
def test_what_a_person_has_put_there_stays(tmp_path, name):
  make(tmp_path / name)
  leftovers.clear(str(tmp_path))
  assert os.listdir(tmp_path) == [name]


@pytest.mark.parametrize('name', OURS)
def test_name_of_ours_proves_nothing(tmp_path, name):
  make(tmp_path / 'safe')
  make(tmp_path / 'with_notes', 'state', 'notes')
  for what in ('with_notes', 'link', 'file'):
    path = tmp_path / name
    if what == 'link':
      path.symlink_to(tmp_path / 'safe')
    elif what == 'file':
      path.touch()
    else:
      (tmp_path / what).rename(path)
    leftovers.clear(str(tmp_path))
    assert os.path.lexists(path), what
    shutil.rmtree(path) if path.is_dir() and what != 'link' else path.unlink()
  assert sorted(os.listdir(tmp_path / 'safe')) == [
    '_CHECKPOINT_METADATA', 'meta.orbax-checkpoint-tmp', 'state',
  ]  # fmt: skip


def test_strangers_that_could_pass_for_checkpoints_are_named(tmp_path):
  for name in ('1.keep', '9.trash', 'notes', 'bad'):
    make(tmp_path / name)
  (tmp_path / '12').mkdir()
  assert folders.strangers(str(tmp_path)) == ['1.keep']
  assert folders.strangers(str(tmp_path / 'nowhere')) == []


def test_manager_tells_once_of_what_it_ignores(
  make_manager, make_state, tmp_path, caplog
):
  make(tmp_path / 'run' / 'checkpoints' / '1.keep')
  with make_manager() as checkpoints:
    for step in (2, 3):
      checkpoints.save(step, make_state(), data_index=step, meta={})
    checkpoints.wait()
    assert checkpoints.latest_step() == 3
  assert caplog.text.count('1.keep is ignored') == 1
  assert sorted(os.listdir(tmp_path / 'run' / 'checkpoints')) == [
    '1.keep', '2', '3',
  ]  # fmt: skip


def test_checkpoint_that_is_moved_away_beside_the_others_is_safe(
  saved, make_manager, make_state
):
  saved.rename(saved.with_name('4.away'))
  with make_manager() as checkpoints:
    checkpoints.save(5, make_state(), data_index=5, meta={})
  assert sorted(os.listdir(saved.parent)) == ['4.away', '5']
  saved.with_name('4.away').rename(saved)
  folders.check(str(saved))


def test_person_s_folder_with_the_name_of_a_save_is_not_written_over(
  saved, make_manager, make_state
):
  mine = saved.parent / '5.unsealed' / 'mine'
  mine.mkdir(parents=True)
  with make_manager() as checkpoints:
    checkpoints.save(5, make_state(), data_index=5, meta={}, urgent=False)
    checkpoints._finish()
    checkpoints.save(6, make_state(), data_index=6, meta={})
  assert mine.is_dir()
  assert sorted(os.listdir(saved.parent)) == ['4', '5.unsealed', '6']


def test_removal_that_is_killed_half_way_leaves_nothing_that_counts(
  saved, monkeypatch
):
  with monkeypatch.context() as killed:
    killed.setattr(shutil, 'rmtree', lambda path, **_: None)
    leftovers.remove(str(saved))
  assert os.listdir(saved.parent) == ['4.trash']
  assert folders.steps(str(saved.parent)) == []
  leftovers.clear(str(saved.parent))
  assert os.listdir(saved.parent) == []


def test_removal_is_on_disk_before_a_file_is_deleted(saved, monkeypatch):
  events = disk.record(monkeypatch)
  leftovers.remove(str(saved))
  renamed, synced = ('name', f'{saved}.trash'), ('fsync', str(saved.parent))
  assert disk.in_order(events, renamed, synced)


def test_folder_that_vanishes_while_it_is_cleared_is_no_error(tmp_path):
  leftovers.clear(str(tmp_path / 'nowhere'))
