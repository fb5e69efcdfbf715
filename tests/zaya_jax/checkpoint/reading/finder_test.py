# SPDX-License-Identifier: Apache-2.0
"""Which of several checkpoints is taken, and which are refused."""

import os
import shutil

import pytest

from zaya_jax.checkpoint import errors, folders, seal
from zaya_jax.checkpoint.reading import finder


def make(folder, step, *, sealed=True, says=None):
  path = folder / str(step) / 'state'
  path.mkdir(parents=True)
  (path / 'data').write_text(f'of step {step}')
  if sealed:
    seal.write(str(path.parent), {'step': step if says is None else says})


@pytest.mark.parametrize('repair', [False, True])
def test_newest_valid_is_taken_and_bad_ones_are_renamed_by_training_only(
  tmp_path, caplog, repair
):
  for step in (7, 8, 9):
    make(tmp_path, step)
  (tmp_path / '10').mkdir()
  (tmp_path / '9' / 'state' / 'data').write_text('of step X')
  make(tmp_path, 11, sealed=False)
  assert finder.newest(str(tmp_path), repair=repair) == 8
  left = {'7', '8'} | ({'bad'} if repair else {'9', '10', '11'})
  assert {*os.listdir(tmp_path)} == left
  assert len(caplog.records) == 3
  if repair:
    bad = sorted(os.listdir(tmp_path / 'bad'))
    assert bad == ['10-unsealed', '11-unsealed', '9-hash']
    assert (tmp_path / 'bad/9-hash/state/data').read_text() == 'of step X'
    make(tmp_path, 11, sealed=False)
    finder.newest(str(tmp_path), repair=True)
    assert len(os.listdir(tmp_path / 'bad')) == 4  # None replaces another.


def test_when_all_are_bad_nothing_is_touched_and_each_is_named(tmp_path):
  make(tmp_path, 7, sealed=False)
  make(tmp_path, 8)
  os.truncate(tmp_path / '8/state/data', 3)
  with pytest.raises(errors.CheckpointError) as caught:
    finder.newest(str(tmp_path), repair=True)
  assert '8 (size), 7 (unsealed)' in str(caught.value)
  assert 'action=seal' in str(caught.value) and caught.value.exit_code == 3
  assert sorted(os.listdir(tmp_path)) == ['7', '8']


def test_change_after_it_was_verified_is_seen(tmp_path):
  make(tmp_path, 7)
  make(tmp_path, 8)
  assert finder.newest(str(tmp_path)) == 8
  (tmp_path / '8/state/data').write_text('OF STEP 8')
  assert finder.newest(str(tmp_path)) == 7


def test_run_directory_folder_and_checkpoint_mean_a_checkpoint(tmp_path):
  folder = tmp_path / 'checkpoints'
  make(folder, 9)
  make(folder, 10)
  assert finder.resolve(str(tmp_path)) == str(folder / '10')
  assert finder.resolve(str(folder)) == str(folder / '10')
  assert finder.resolve(str(folder / '9')) == str(folder / '9')
  (folder / '9' / 'state' / 'data').unlink()
  with pytest.raises(seal.BrokenError, match='state/data is missing'):
    finder.resolve(str(folder / '9'))


@pytest.mark.parametrize('folders', [[], ['checkpoints/7']])
def test_source_without_checkpoint_is_refused(tmp_path, folders):
  for folder in folders:
    (tmp_path / folder).mkdir(parents=True)
  with pytest.raises(errors.CheckpointError, match='no complete') as caught:
    finder.resolve(str(tmp_path))
  assert caught.value.exit_code == 2


@pytest.mark.parametrize('harm', ['flip', 'cut', 'add'])
def test_damaged_newest_is_refused_and_not_passed_over(tmp_path, harm):
  folder = tmp_path / 'checkpoints'
  make(folder, 9)
  make(folder, 10)
  data = folder / '10' / 'state' / 'data'
  if harm == 'add':
    (folder / '10' / 'state' / 'more').write_text('')
  else:
    data.write_text('of step 1X' if harm == 'flip' else 'of')
  for source in (tmp_path, folder, folder / '10'):
    with pytest.raises(seal.BrokenError, match='10 is damaged') as caught:
      finder.resolve(str(source))
    assert caught.value.exit_code == 3
    assert str(caught.value).endswith('; use an older one.')
  assert finder.resolve(str(folder / '9')) == str(folder / '9')
  assert finder.newest(str(folder)) == 9  # Training goes on from there.


def test_what_has_no_seal_is_passed_over(tmp_path, caplog):
  make(tmp_path, 9)
  make(tmp_path, 10, sealed=False)
  assert finder.resolve(str(tmp_path)) == str(tmp_path / '9')
  assert '10 has no seal' in caplog.text


def test_link_in_place_of_a_checkpoint_does_not_count(tmp_path):
  make(tmp_path / 'checkpoints', 9)
  make(tmp_path / 'elsewhere', 10)
  link = tmp_path / 'checkpoints' / '10'
  link.symlink_to(tmp_path / 'elsewhere' / '10')
  assert finder.newest(str(link.parent)) == 9
  assert folders.steps(str(link.parent)) == [9]
  with pytest.raises(seal.BrokenError, match='the folder is a link'):
    finder.verify(str(link))
  assert finder.resolve(str(link)) == str(tmp_path / 'elsewhere' / '10')


@pytest.mark.parametrize('moment', ['lstat', 'scandir', 'walk'])
def test_checkpoint_that_is_removed_while_it_is_looked_at_is_passed_over(
  tmp_path, monkeypatch, moment
):
  folder = tmp_path / 'checkpoints'
  make(folder, 9)
  make(folder, 10)
  look = getattr(os, moment)

  def removed(path, *args, **kwargs):
    if str(path).startswith(f'{folder}/10'):
      shutil.rmtree(folder / '10', ignore_errors=True)
    return look(path, *args, **kwargs)

  rmtree = shutil.rmtree
  monkeypatch.setattr(shutil, 'rmtree', lambda p, **_: plain(rmtree, p))
  monkeypatch.setattr(os, moment, removed)

  def plain(remove, path):
    with monkeypatch.context() as undone:
      undone.setattr(os, moment, look)
      remove(path, ignore_errors=True)

  assert finder.resolve(str(tmp_path)) == str(folder / '9')
  assert folders.steps(str(folder)) == [9]
