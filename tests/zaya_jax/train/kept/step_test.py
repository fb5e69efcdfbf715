# SPDX-License-Identifier: Apache-2.0
"""A kept step is the step, to the bit; what is not as it was is made again."""

import dataclasses
import os
import sys
import types

import jax
import numpy as np
import pytest

from ops import dispatch
from tests.support import meshes, quick
from zaya_jax.optim import optimizer as optimizer_lib
from zaya_jax.parallel import batch as batch_lib
from zaya_jax.runtime import clock
from zaya_jax.train import step as step_lib
from zaya_jax.train.kept import files
from zaya_jax.train.kept import step as kept

pytest.importorskip('flatbuffers')
# Programs are compared, not models: one layer compiles soonest.
MODEL = dataclasses.replace(meshes.MODEL, num_layers=1, scan_layers='false')
CONFIG = dataclasses.replace(meshes.config_of(replica=2), model=MODEL)


@pytest.fixture(autouse=True)
def old_sources(monkeypatch):
  """As they are where nobody works on them."""
  monkeypatch.setattr(clock, 'BEGAN', clock.BEGAN + 10**6)


@pytest.fixture
def small(monkeypatch):
  """A step that is traced at once, where it may be any."""

  def make(config, **_):
    def step(state, batch):
      del batch
      scale = config.guard.spike_limit
      params = jax.tree.map(lambda a: scale * a, state.params)
      return dataclasses.replace(state, params=params), {'scale': scale}

    return step

  monkeypatch.setattr(step_lib, 'make_train_step', make)


@pytest.fixture
def traced(monkeypatch):
  """The steps that were traced, one entry each."""
  found = []
  make = step_lib.make_train_step

  def counting(*args, **options):
    step = make(*args, **options)

    def traced_step(*arguments):
      found.append(args[0])
      return step(*arguments)

    return traced_step

  monkeypatch.setattr(step_lib, 'make_train_step', counting)
  return found


def start(place, config=CONFIG):
  """Lowers as a start does; the lowered step and what it said."""
  notes = []
  mesh = meshes.mesh_of(config)
  with jax.set_mesh(mesh):
    batch = batch_lib.put_batch(mesh, meshes.BATCH)
    state = meshes.first_state(config)
    step = step_lib.make_train_step(config, hold=True)
    made = kept.Step(step, {}, config, str(place), notes.append)
    return made.lower(state, batch), notes


def result(lowered, config=CONFIG):
  """The state and what was measured after two steps, and their shardings."""
  mesh, program = meshes.mesh_of(config), lowered.compile()
  with jax.set_mesh(mesh):
    batch = batch_lib.put_batch(mesh, meshes.BATCH)
    state, _ = program(meshes.first_state(config), batch)
    made = program(state, batch)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(state.params))
  shardings = jax.tree.map(lambda a: a.sharding, made)
  aliased = program.memory_analysis().alias_size_in_bytes
  return jax.device_get(made), (shardings, aliased)


def plain(config=CONFIG):
  """The step lowered as by a program that keeps nothing."""
  mesh = meshes.mesh_of(config)
  step = step_lib.make_jitted(config, optimizer_lib.of_run(config))
  with jax.set_mesh(mesh):
    batch = batch_lib.put_batch(mesh, meshes.BATCH)
    return step.lower(meshes.first_state(config), batch)


def kept_file(place):
  (file,) = (place / 'lowered').iterdir()
  return file


@pytest.mark.parametrize(
  'name', quick.only(('zero_2', 'all_but_zero'), 'zero_2')
)
def test_second_start_loads_the_step_and_it_is_the_step(name, tmp_path, traced):
  sizes = meshes.SHAPES[name]
  config = dataclasses.replace(meshes.config_of(**sizes), model=MODEL)
  first, notes = start(tmp_path, config)
  assert (len(traced), notes) == (1, [])
  second, notes = start(tmp_path, config)
  assert len(traced) == 1
  assert notes == ['the step was lowered before']
  assert first.as_text() == second.as_text()
  made, about = result(second, config)
  expected, about_expected = result(plain(config), config)
  assert about == about_expected
  jax.tree.map(np.testing.assert_array_equal, made, expected)


def test_engines_are_told_by_a_start_that_traces_nothing(tmp_path, monkeypatch):
  start(tmp_path)
  told = dispatch.notes()
  monkeypatch.setattr(dispatch, '_choices', {})
  assert dispatch.notes() != told
  start(tmp_path)
  assert dispatch.notes() == told


@pytest.mark.usefixtures('small')
def test_damaged_file_is_told_and_made_again(tmp_path, traced):
  start(tmp_path)
  file = kept_file(tmp_path)
  whole = file.read_bytes()
  file.write_bytes(whole[:-1] + b'?')
  _, notes = start(tmp_path)
  assert notes == [f'the step is lowered again: {file} is damaged']
  assert len(traced) == 2
  start(tmp_path)
  assert len(traced) == 2


@pytest.mark.usefixtures('small')
def test_other_settings_are_another_step(tmp_path, traced):
  start(tmp_path)
  other = dataclasses.replace(CONFIG.guard, spike_limit=3.0)
  start(tmp_path, dataclasses.replace(CONFIG, guard=other))
  assert len(traced) == 2
  start(tmp_path, dataclasses.replace(CONFIG, run_dir='other'))
  assert len(traced) == 2


@pytest.mark.usefixtures('small')
def test_name_that_hides_a_setting_is_noticed(tmp_path, monkeypatch):
  other = dataclasses.replace(CONFIG.guard, spike_limit=3.0)
  config = dataclasses.replace(CONFIG, guard=other)
  right, _ = start(tmp_path / 'a', config)
  monkeypatch.setattr(kept.facts, 'digest', lambda *_: 'abc')
  start(tmp_path / 'b')
  wrong, _ = start(tmp_path / 'b', config)
  assert wrong.as_text() != right.as_text()


@pytest.mark.usefixtures('small')
def test_where_nothing_can_be_kept_the_step_is_lowered(tmp_path, traced):
  (tmp_path / 'lowered').write_text('a file in the place of the folder')
  _, notes = start(tmp_path)
  assert len(traced) == 1
  assert 'the step is lowered again: ' in notes[0]
  assert 'the step cannot be kept: ' in notes[1]


@pytest.mark.usefixtures('small')
def test_step_that_calls_python_is_not_kept(tmp_path, monkeypatch):
  make = step_lib.make_train_step

  def telling(*args, **options):
    step = make(*args, **options)

    def told(state, batch):
      jax.debug.callback(lambda: None)
      return step(state, batch)

    return told

  monkeypatch.setattr(step_lib, 'make_train_step', telling)
  lowered, notes = start(tmp_path)
  assert 'the step cannot be kept: ' in notes[0]
  assert 'callback' in lowered.as_text()
  assert not (tmp_path / 'lowered').exists()


@pytest.mark.usefixtures('small')
def test_sources_that_are_being_changed_keep_nothing(tmp_path, monkeypatch):
  monkeypatch.setattr(clock, 'BEGAN', 0.0)
  _, notes = start(tmp_path)
  assert notes == []
  assert not os.listdir(tmp_path)


def test_only_the_command_line_keeps_steps(monkeypatch, tmp_path):
  assert kept.folder() == ''  # This is pytest.
  spec = types.SimpleNamespace(name='zaya_jax.main')
  main = types.SimpleNamespace(__spec__=spec)
  monkeypatch.setitem(sys.modules, '__main__', main)
  values = {
    'jax_compilation_cache_dir': str(tmp_path),
    'jax_enable_compilation_cache': True,
  }
  monkeypatch.setattr(jax, 'config', types.SimpleNamespace(values=values))
  assert kept.folder() == str(tmp_path)
  values['jax_compilation_cache_dir'] = 'gs://bucket/programs'
  assert kept.folder() == ''
  values['jax_compilation_cache_dir'] = None
  assert kept.folder() == ''
  values['jax_compilation_cache_dir'] = str(tmp_path)
  values['jax_enable_compilation_cache'] = False
  assert kept.folder() == ''


def test_files_are_those_of_the_folder(tmp_path):
  assert files.path(str(tmp_path), 'a').parent == tmp_path / 'lowered'
