# SPDX-License-Identifier: Apache-2.0
"""The mark of the newest checkpoint, and where it is kept."""

import json
import os
import shutil

import pytest

from zaya_jax.checkpoint import seal
from zaya_jax.checkpoint.reading import high_water
from zaya_jax.runtime import run_files


def make(run, step):
  path = run / 'checkpoints' / str(step)
  path.mkdir(parents=True)
  return seal.write(str(path), {'step': step})


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
  monkeypatch.setenv('XDG_STATE_HOME', str(tmp_path / 'state'))
  return tmp_path / 'state' / 'zaya_jax'


def test_mark_is_kept_outside_of_the_run_directory(tmp_path, state):
  run = tmp_path / 'run'
  body = make(run, 7)
  assert high_water.read(str(run)) is None and not state.exists()
  high_water.set_to(str(run), body)
  own = run_files.run_id(str(run))
  mark = high_water.Mark(7, seal.identity(body), own)
  assert high_water.read(str(run)) == mark
  (path,) = (state / 'high_water').iterdir()
  assert json.loads(path.read_text())['run_dir'] == str(run)
  assert os.stat(path.parent).st_mode & 0o777 == 0o700
  high_water.set_to(str(run), None)
  assert high_water.read(str(run)) is None


def test_copy_of_a_run_has_another_past(tmp_path):
  high_water.set_to(str(tmp_path / 'run'), make(tmp_path / 'run', 7))
  shutil.copytree(tmp_path / 'run', tmp_path / 'copy')
  assert high_water.read(str(tmp_path / 'copy')) is None
  assert high_water.read(str(tmp_path / 'run')).step == 7


def test_mark_is_that_of_a_link_to_the_run_too(tmp_path):
  high_water.set_to(str(tmp_path / 'run'), make(tmp_path / 'run', 7))
  (tmp_path / 'link').symlink_to('run')
  assert high_water.read(str(tmp_path / 'link')).step == 7


def test_mark_is_lowered_to_what_is_left(tmp_path):
  run = tmp_path / 'run'
  make(run, 5)
  body = make(run, 9)
  high_water.set_to(str(run), body)
  high_water.lower(str(run), below=10)  # It is older than that already.
  assert high_water.read(str(run)).step == 9
  high_water.lower(str(run), below=9)
  assert high_water.read(str(run)).step == 5
  high_water.lower(str(run), below=5)
  assert high_water.read(str(run)) is None


@pytest.mark.parametrize('content', [b'', b'[]', b'{}', b'\xff'])
def test_mark_that_cannot_be_read_is_told_of(tmp_path, state, content, caplog):
  high_water.set_to(str(tmp_path), make(tmp_path, 7))
  (path,) = (state / 'high_water').iterdir()
  path.write_bytes(content)
  assert high_water.read(str(tmp_path)) is None
  assert 'is the newest is not known' in caplog.text


def test_home_that_cannot_be_written_fails_no_save(tmp_path, caplog, state):
  state.parent.mkdir()
  state.write_text('')
  high_water.set_to(str(tmp_path), make(tmp_path, 7))
  assert 'is the newest is not kept' in caplog.text


def test_another_home_takes_its_place(tmp_path, monkeypatch):
  kept = {}

  class Store:
    def read(self):
      return kept.get('mark')

    def write(self, mark):
      kept['mark'] = mark

  monkeypatch.setattr(high_water, 'home', lambda _: Store())
  high_water.set_to(str(tmp_path), make(tmp_path, 7))
  assert high_water.read(str(tmp_path)).step == 7
  assert json.dumps(kept['mark']._asdict())
