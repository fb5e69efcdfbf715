# SPDX-License-Identifier: Apache-2.0
"""What the name of a kept step depends on, and what it does not."""

import dataclasses
import os
import time

import jax
import pytest

from ops import dispatch
from tests.support import meshes
from zaya_jax.runtime import clock
from zaya_jax.train import traced
from zaya_jax.train.kept import facts

CONFIG = meshes.config_of(replica=2)


@pytest.fixture(autouse=True)
def sources(monkeypatch, tmp_path):
  """One file in place of all, older than this process."""
  file = tmp_path / 'source.py'
  file.write_text('1')
  os.utime(file, (0, 0))
  monkeypatch.setattr(facts, '_files', lambda: [file])
  return file


def name(config=CONFIG, **arrays):
  """The digest of a run whose step takes an array, or others."""
  mesh = meshes.mesh_of(config)
  rows = jax.sharding.NamedSharding(mesh, jax.P('replica'))
  shape = jax.ShapeDtypeStruct((8, 4), 'float32', sharding=rows)
  with jax.set_mesh(mesh):
    return facts.digest(config, {'x': shape, **arrays})


def changed(**sections):
  """The config with other fields of its sections."""
  made = {
    section: dataclasses.replace(getattr(CONFIG, section), **fields)
    for section, fields in sections.items()
  }
  return dataclasses.replace(CONFIG, **made)


def test_same_facts_give_the_same_name():
  assert len(name()) == 64
  assert name() == name()


@pytest.mark.parametrize(
  'config',
  [
    changed(optim={'lr': 1.5}),
    changed(model={'remat': 'block'}),
    changed(guard={'spike_limit': 99.0}),
    changed(mesh={'replica': 4}),
    dataclasses.replace(CONFIG, num_steps=21),
  ],
)
def test_other_settings_give_another(config):
  assert name(config) != name()


def test_settings_that_no_step_reads_do_not():
  other = changed(
    checkpoint={'every': 7}, log={'every': 3}, data={'dir': ('elsewhere',)}
  )
  assert name(dataclasses.replace(other, run_dir='other')) == name()


def test_a_step_reads_no_other_settings():
  mesh = meshes.mesh_of(CONFIG)

  class Forbidden:
    def __getattr__(self, name):
      raise AssertionError(f'{name} is read')

  def without(names):
    config = dataclasses.replace(CONFIG)
    for section in names:
      object.__setattr__(config, section, Forbidden())
    return config

  plain = {
    f.name
    for f in dataclasses.fields(CONFIG)
    if not dataclasses.is_dataclass(getattr(CONFIG, f.name))
  }
  traced.trace(without(facts.OUTSIDE - plain), mesh)
  with pytest.raises(AssertionError, match='is read'):
    traced.trace(without({'optim'}), mesh)


def test_other_arrays_give_another():
  mesh = meshes.mesh_of(CONFIG)
  whole = jax.sharding.NamedSharding(mesh, jax.P())
  for shape, dtype in (((8, 5), 'float32'), ((8, 4), 'bfloat16')):
    other = jax.ShapeDtypeStruct(shape, dtype, sharding=whole)
    assert name(x=other) != name()
  same_shape = jax.ShapeDtypeStruct((8, 4), 'float32', sharding=whole)
  assert name(x=same_shape) != name()


def test_other_sources_versions_and_engines_give_another(monkeypatch, sources):
  was = name()
  sources.write_text('2')
  os.utime(sources, (0, 0))
  assert name() != was
  sources.write_text('1')
  os.utime(sources, (0, 0))
  assert name() == was
  with dispatch.use(cca='xla'):
    assert name() != was
  jax.config.update('jax_default_matmul_precision', 'highest')
  try:
    assert name() != was
  finally:
    jax.config.update('jax_default_matmul_precision', None)
  monkeypatch.setattr(facts.metadata, 'version', lambda _: '0')
  assert name() != was


def test_sources_that_are_younger_than_the_process_have_no_name(sources):
  os.utime(sources, (time.time(), clock.BEGAN + 1))
  assert name() == ''
  os.utime(sources, (time.time(), clock.BEGAN - 60))
  assert name() != ''


def test_all_sources_of_a_step_are_looked_at(monkeypatch):
  monkeypatch.undo()
  found = {str(path) for path in facts._files()}
  for part in ('train/step.py', 'model/zaya.py', 'ops/hopper/persistent.py'):
    assert any(path.endswith(part) for path in found)


def test_the_segment_of_a_recipe_is_a_setting():
  longer = dataclasses.replace(CONFIG, num_steps=CONFIG.num_steps + 1)
  found = facts.settings(CONFIG)
  assert found['segment'] != facts.settings(longer)['segment']
  assert 'run_dir' not in found
