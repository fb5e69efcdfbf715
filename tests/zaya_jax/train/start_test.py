# SPDX-License-Identifier: Apache-2.0
"""Where a run goes on: the state and the place in the data of a checkpoint."""

import dataclasses
import types
from fractions import Fraction

import jax
import numpy as np
import pytest

from pipelines import order
from tests.support import meshes, recipes, tiny
from zaya_jax import config as config_lib
from zaya_jax.checkpoint import meta
from zaya_jax.checkpoint.writing import manager
from zaya_jax.data import position
from zaya_jax.parallel import mesh as mesh_lib
from zaya_jax.runtime import supervised
from zaya_jax.train import start as start_lib
from zaya_jax.train import state as state_lib

STEP, INDEX, TOKENS = 4, 32, 1024
HASHES = {'dataset_sha256': 'of the shards', 'tokenizer_sha256': 'of the ids'}


def _loader(state=0, seed=0):
  stretch = order.Stretch(None, 16, (Fraction(1),))
  return types.SimpleNamespace(
    state=state,
    order=order.Order([order.Extent(9999, 64)], [stretch], seed),
    manifests=[],
  )


@pytest.fixture(scope='module')
def run(tmp_path_factory):
  """Settings, mesh and state of a run that has saved step 4."""
  config = config_lib.Config(
    run_dir=str(tmp_path_factory.mktemp('run')),
    num_steps=10,
    model=tiny.config(),
    data=config_lib.DataConfig(batch_size=8),
  )
  axes = config_lib.MeshConfig(replica=1)
  mesh = mesh_lib.make_mesh(axes)
  # Without compiling `init`, which takes seconds.
  state = meshes.first_state(dataclasses.replace(config, mesh=axes))
  state = dataclasses.replace(state, step=state.step + STEP)
  about = meta.describe(
    config, flags='', tokens=TOKENS, metrics={'train/loss': 1.0}, **HASHES
  )
  about['order'] = position.describe(_loader(INDEX))
  with manager.Manager(config.run_dir, config.checkpoint) as saved:
    saved.save(STEP, state, data_index=INDEX, meta=about)
  return config, mesh, state


@pytest.fixture
def go_on(run):
  """A function: settings to change -> where the run begins, and its loader."""

  def call(sha256=HASHES['dataset_sha256'], **changes):
    config, mesh, _ = run
    config = dataclasses.replace(config, **changes)
    corpus = types.SimpleNamespace(
      loader=_loader(seed=config.seed),
      sha256=sha256,
      check_tokenizer=lambda sha256: None,
    )
    init = state_lib.make_init(config)
    with manager.Manager(config.run_dir, config.checkpoint) as saved:
      start = start_lib.restore_or_init(config, mesh, init, corpus, saved)
    return start, corpus.loader

  return call


def test_run_goes_on_where_it_was(run, go_on):
  start, loader = go_on()
  assert (start.step, start.tokens, loader.state) == (STEP, TOKENS, INDEX)
  assert start.notes == ('resumed at step 4 (data index 32)',)
  assert start.config == run[0] and start.fast is None
  jax.tree.map(np.testing.assert_array_equal, start.state, run[2])


def test_changes_are_told_and_taken(go_on):
  start, _ = go_on(prompt='x', num_steps=20)
  resumed, *changes, schedule = start.notes
  assert resumed.startswith('resumed')
  assert 'changed: --prompt:  -> x' in changes
  assert 'schedule of 10 steps' in schedule
  assert start.config.optim.schedule_steps == 10


def test_another_order_of_the_text_is_refused(go_on):
  with pytest.raises(config_lib.UsageError, match='--seed: 0 -> 1'):
    go_on(seed=1)


def test_other_shards_are_told(go_on):
  start, _ = go_on(sha256='of other shards')
  assert 'changed: the shards: their content is not what it was' in start.notes


# Its name is a path: the same ids may lie in two places.
@pytest.mark.parametrize('sha256, kept', [('of the ids', True), ('x', False)])
def test_tokenizer_is_kept_where_its_ids_are_the_same(
  run, monkeypatch, sha256, kept
):
  config, mesh, state = run
  theirs = types.SimpleNamespace(sha256=sha256, name='there', stop_ids=())
  mine = types.SimpleNamespace(sha256='of the ids', name='here', stop_ids=())
  folder = types.SimpleNamespace(
    is_folder=lambda path: False,
    read_tokenizer=lambda path, model: theirs,
    keep_files=lambda *folders: copied.append(folders),
  )
  copied: list = []
  monkeypatch.setattr(start_lib, 'hub_folder', folder)
  corpus = types.SimpleNamespace(tokenizer=mine, has_chats=False)
  source = dataclasses.replace(config, restore=config.run_dir)
  *_, notes = start_lib._with_params_of(source, state, corpus, mesh)
  assert bool(copied) == kept
  assert ('changed: the tokenizer, there -> here' in notes) != kept


# A rollback to another step leaves nothing out: its batches were good.
@pytest.mark.parametrize('rollback, batches', [(STEP, 3), (STEP - 1, 0)])
def test_rollback_leaves_out_batches(
  run, go_on, monkeypatch, rollback, batches
):
  place = supervised.Place(
    rank=0,
    generation=1,
    run_dir=run[0].run_dir,
    environment={},
    skip=(rollback, 3),
  )
  monkeypatch.setattr(supervised, '_place', place)
  start, loader = go_on()
  assert loader.state == INDEX + batches * 8  # Windows of a batch.
  assert ('3 batches are left out' in start.notes[0]) == bool(batches)


RECIPE = """
[sources]
web = "web"
[[phase]]
name = "one"
tokens = 64
lr = {{from = 1.0}}
[[phase]]
name = "two"
tokens = 64
keep = "{keep}"
"""


@pytest.mark.parametrize('keep', ['all', 'params'])
@pytest.mark.parametrize('row', [4, 5, 8])
def test_a_new_segment_begins_with_what_it_keeps(tmp_path, keep, row):
  text = RECIPE.format(keep=keep)
  config = recipes.entered(recipes.config(tmp_path, text, batch_size=1), 1)
  names = [field.name for field in dataclasses.fields(state_lib.TrainState)]
  old, new = (
    state_lib.TrainState(**{name: np.float32([x]) for name in names})
    for x in (1, 2)
  )
  mesh = mesh_lib.make_mesh(config_lib.MeshConfig(replica=1))
  found = start_lib._begin_segment(config, old, row, lambda: new, mesh)
  changed = {n for n in names if getattr(found, n) is not getattr(old, n)}
  if row > 4:  # Within the segment.
    assert not changed
    return
  assert not np.any(found.recent) and found.recent.shape[0] == 2
  optimizer = {'opt_state', 'balance_state'} if keep == 'params' else set()
  assert changed == {'recent'} | optimizer
  assert all(getattr(found, name) == 2 for name in optimizer)
