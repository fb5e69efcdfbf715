# SPDX-License-Identifier: Apache-2.0
"""From which checkpoint a run goes on, and from which it does not."""

import os
import shutil

import pytest

from zaya_jax.checkpoint import errors, seal
from zaya_jax.checkpoint.reading import high_water, resuming
from zaya_jax.runtime import fence, run_files


def make(folder, step, **facts):
  path = folder / 'checkpoints' / str(step)
  (path / 'state').mkdir(parents=True)
  (path / 'state' / 'data').write_text(f'step {step} of {folder}')
  known = {'step': step, 'run': run_files.run_id(str(folder)), **facts}
  return seal.write(str(path), known)


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
  monkeypatch.setenv('XDG_STATE_HOME', str(tmp_path / 'state'))


@pytest.fixture
def run(tmp_path):
  """A run with the checkpoints 4 and 8, of which the mark knows."""
  make(tmp_path / 'run', 4)
  high_water.set_to(str(tmp_path / 'run'), make(tmp_path / 'run', 8))
  return tmp_path / 'run'


def move(source, target):
  shutil.rmtree(target, ignore_errors=True)
  shutil.copytree(source, target)


def names(run, folder=''):
  return sorted(os.listdir(run / 'checkpoints' / folder))


def test_run_goes_on_from_its_newest_checkpoint(run):
  assert resuming.newest(str(run)) == 8
  resuming.check(str(run), 8)
  resuming.check(str(run), 9)  # As from a fast copy.


@pytest.mark.parametrize('step', [8, 12])
def test_checkpoint_of_another_run_is_set_aside(run, tmp_path, step, caplog):
  other = tmp_path / 'other'
  make(other, step)
  move(other / 'checkpoints' / str(step), run / 'checkpoints' / str(step))
  newest = resuming.newest(str(run), repair=True)
  assert newest == (4 if step == 8 else 8)
  assert names(run, 'bad') == [f'{step}-run']
  if step == 8:  # What stood in its place is gone: that is no damage.
    with pytest.raises(errors.CheckpointError, match='step 8 was sealed'):
      resuming.check(str(run), newest)


def test_run_that_has_only_those_of_another_says_so(tmp_path):
  make(tmp_path / 'other', 3)
  move(tmp_path / 'other' / 'checkpoints', tmp_path / 'new' / 'checkpoints')
  with pytest.raises(errors.CheckpointError, match=r'3 \(run\).*--restore'):
    resuming.newest(str(tmp_path / 'new'), repair=True)


def test_seals_from_before_runs_had_ids_hold(tmp_path):
  make(tmp_path, 3, run=None)
  assert resuming.newest(str(tmp_path)) == 3
  path = tmp_path / 'checkpoints' / '5'
  path.mkdir()
  seal.write(str(path), {'step': 5})
  assert resuming.newest(str(tmp_path)) == 5


@pytest.mark.parametrize(
  'generation, step, counts',
  [(1, 4, True), (1, 5, False), (2, 5, True), (2, 7, False), (3, 99, True)],
)
def test_zombie_s_checkpoints_do_not_count(tmp_path, generation, step, counts):
  make(tmp_path, 3)
  for number, start in ((1, 0), (2, 4), (3, 6)):
    fence.raise_to(str(tmp_path), number, start)
  make(tmp_path, step, generation=generation)
  newest = resuming.newest(str(tmp_path), repair=True)
  assert newest == (step if counts else 3)
  if not counts:
    assert names(tmp_path, 'bad') == [f'{step}-zombie']


def test_generation_that_began_with_nothing_makes_zombies_too(tmp_path):
  fence.raise_to(str(tmp_path), 2, 0)
  assert resuming.outlived({'step': 1, 'generation': 1}, [(2, 0)])
  assert not resuming.outlived({'step': 1, 'generation': 1}, [(2, None)])
  assert not resuming.outlived({'step': 1}, [(2, 0)])


def test_run_does_not_go_back_unasked(run):
  shutil.rmtree(run / 'checkpoints' / '8')
  newest = resuming.newest(str(run), repair=True)
  assert newest == 4
  with pytest.raises(
    errors.CheckpointError, match='step 4 as its newest.*action=accept'
  ) as caught:
    resuming.check(str(run), newest)
  assert caught.value.exit_code == 3
  shutil.rmtree(run / 'checkpoints')
  with pytest.raises(errors.CheckpointError, match='no checkpoint'):
    resuming.check(str(run), None)


def test_older_life_of_the_same_step_is_not_taken(run):
  shutil.rmtree(run / 'checkpoints' / '8')
  make(run, 8, again=True)
  (run / 'checkpoints' / '8' / 'state' / 'data').write_text('another life')
  facts = seal.read(str(run / 'checkpoints' / '8'))
  del facts['files']
  seal.write(str(run / 'checkpoints' / '8'), facts)
  assert resuming.newest(str(run)) == 8
  with pytest.raises(errors.CheckpointError, match='with other content'):
    resuming.check(str(run), 8)


def test_damage_lets_the_run_go_back(run):
  (run / 'checkpoints' / '8' / 'state' / 'data').write_text('step 8 of nobody')
  newest = resuming.newest(str(run), repair=True)
  assert newest == 4
  resuming.check(str(run), newest)


def test_another_run_with_its_id_does_not_take_the_place_of_one(run, tmp_path):
  make(tmp_path / 'other', 12)
  for name in ('checkpoints', 'run_id'):
    path = run / name
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    (tmp_path / 'other' / name).rename(path)
  newest = resuming.newest(str(run))
  assert newest == 12
  with pytest.raises(errors.CheckpointError, match='run_id says'):
    resuming.check(str(run), newest)


def test_new_run_may_take_the_place_of_one_that_was_deleted(run):
  shutil.rmtree(run)
  run.mkdir()
  newest = resuming.newest(str(run))
  assert newest is None
  resuming.check(str(run), newest)
