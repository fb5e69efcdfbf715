# SPDX-License-Identifier: Apache-2.0
"""Where a run begins: anew, from the parameters of another, or going on."""

import dataclasses
import os
from collections.abc import Callable
from typing import Any

import jax

from zaya_jax import config as config_lib
from zaya_jax.checkpoint import arrays, meta, seal
from zaya_jax.checkpoint.reading import finder, reader
from zaya_jax.checkpoint.writing import fast as fast_lib
from zaya_jax.checkpoint.writing import manager
from zaya_jax.config.recipe import segments
from zaya_jax.data import corpus as corpus_lib
from zaya_jax.data import course as course_lib
from zaya_jax.data import history, position
from zaya_jax.data.ledger import book as book_lib
from zaya_jax.hub import folder as hub_folder
from zaya_jax.hub import names as hub_names
from zaya_jax.hub.adapters import adapter, bases
from zaya_jax.optim import spikes
from zaya_jax.runtime import beats, processes, run_files, supervised
from zaya_jax.train import inherit
from zaya_jax.train import state as state_lib


@dataclasses.dataclass(frozen=True, kw_only=True)
class Start:
  """Where a run begins.

  Attributes:
    config: of the run, with the schedule that it goes on with.
    state: of `step` steps done.
    step: 0 unless the run goes on.
    tokens: trained on so far.
    notes: what to tell the user.
    fast: where copies of states go; None: nowhere.
    row: the position in the data that the state was saved with.
    ledger: what its meta knows of the ledger; None: nothing.
    frozen: the model that stays as it is; None: there is none.
  """

  config: config_lib.Config
  state: state_lib.TrainState
  step: int = 0
  tokens: int = 0
  notes: tuple[str, ...] = ()
  fast: fast_lib.FastTier | None = None
  row: int = 0
  ledger: dict[str, Any] | None = None
  frozen: adapter.Base | None = None


def restore_or_init(
  config: config_lib.Config,
  mesh: jax.sharding.Mesh,
  init: Callable[[], state_lib.TrainState],
  corpus: corpus_lib.Corpus,
  saved: manager.Manager,
) -> Start:
  """The newest fast copy or checkpoint, or the state of step 0.

  Sets the position in the data where the run goes on.

  Raises:
    UsageError: if the settings do not let it go on.
    CheckpointError: if the checkpoint is of another model, or damaged.
  """
  beats.enter('restore')
  with jax.set_mesh(mesh):
    abstract = arrays.on_mesh(jax.eval_shape(init), mesh)
  fast, copy, newest = None, None, None
  if config.checkpoint.fast:
    fast = fast_lib.FastTier(config.run_dir, config.checkpoint, mesh, abstract)
    copy = fast.restore()
  if not copy:
    newest = saved.latest_step()  # Bad ones are out of the way now.
    copy = fast and fast.restore()
  newest = copy.step if copy else newest
  saved.check(newest)
  if newest is None:
    return _first(config, mesh, init, corpus, fast)
  about = copy.meta if copy else meta.read(saved.directory(newest))
  history.check(config, config.course, about, newest)
  _check_goes_on(config, newest)
  _check_arrays(config, about['arrays'])
  config, kept = inherit.schedule(config, about)
  changes = _changes(config, about, corpus)
  if copy:
    state, corpus.loader.state = copy.state, about['data_index']
  else:
    state, corpus.loader.state, about = saved.restore(newest, abstract)
  row = about['data_index']
  kept_as_is, frozen = bases.again(config, mesh, about)
  state = dataclasses.replace(state, **kept_as_is)
  state = _begin_segment(config, state, row, init, mesh)
  place = {'row': row, 'ledger': about.get(book_lib.META), 'frozen': frozen}
  resumed = f'resumed at step {newest} (data index {row:,})'
  resumed += f' from {copy.where}' if copy else ''
  if skipped := supervised.batches_to_skip(newest):
    corpus.loader.state = course_lib.next_row(config, row, skipped)
    resumed += f', {skipped} batches are left out'
  return Start(
    config=config,
    state=state,
    step=newest,
    tokens=about['tokens'],
    notes=(resumed, *(f'changed: {change}' for change in changes), *kept),
    fast=fast,
    **place,
  )


def _first(config, mesh, init, corpus, fast) -> Start:
  """The state of step 0."""
  state = _initialize(init, mesh)
  if not config.restore:
    return Start(config=config, state=state, fast=fast)
  state, frozen, notes = _with_params_of(config, state, corpus, mesh)
  return Start(
    config=config, state=state, notes=tuple(notes), fast=fast, frozen=frozen
  )


def _changes(config, about, corpus) -> list[str]:
  """What is not as in the checkpoint; a run may go on with it."""
  was = segments.before(config, about['data_index'])
  found = meta.check_same_model(about, was)
  corpus.check_tokenizer(about['tokenizer_sha256'])
  position.check(
    config, about, corpus.loader, changes=found, versions=meta.versions()
  )
  if about['dataset_sha256'] != corpus.sha256:
    found.append('the shards: their content is not what it was')
  return found


def _begin_segment(config, state, row, init, mesh) -> state_lib.TrainState:
  """The state at the beginning of a segment, of that at the end of another.

  The window of spikes begins anew: loss and gradient norm are those of other
  data. So does the optimizer, where only parameters are to be kept.
  """
  here = segments.current(config)
  if not here.index or row > here.first_row:
    return state

  def fresh():
    found = {'recent': spikes.init()}
    if here.keep == 'params':
      new = init()
      found['opt_state'] = new.opt_state
      found['balance_state'] = new.balance_state
    return found

  with jax.set_mesh(mesh):
    return dataclasses.replace(state, **jax.jit(fresh)())


def _check_goes_on(config, newest) -> None:
  if not config.resume:
    raise config_lib.UsageError(
      f'--run_dir={config.run_dir} holds a checkpoint of step {newest} and '
      '--noresume is set; choose another --run_dir, or drop --noresume.'
    )
  if newest > config.num_steps:
    raise config_lib.UsageError(
      f'--num_steps={config.num_steps} is less than the {newest} steps that '
      f'--run_dir={config.run_dir} has done; raise it, or choose another '
      '--run_dir.'
    )


def _check_arrays(config, arrays) -> None:
  if 'step' not in arrays:
    raise config_lib.UsageError(
      f'--run_dir={config.run_dir} holds imported parameters and no optimizer; '
      f'train in another --run_dir with --restore={config.run_dir}.'
    )
  if 'recent' not in arrays:
    raise config_lib.UsageError(
      f'--run_dir={config.run_dir} holds checkpoints of an older zaya_jax, '
      'which did not remember the loss and gradient norm of the last steps; go '
      f'on from its parameters in another --run_dir with '
      f'--restore={config.run_dir}.'
    )


def _initialize(init, mesh) -> state_lib.TrainState:
  options: dict[str, str | bool] = {}
  if mesh.devices.flat[0].platform == 'cpu':
    # This code runs once: to optimize it would take longer than to run it.
    options['xla_backend_optimization_level'] = '0'
  with jax.set_mesh(mesh):
    return jax.jit(init).lower().compile(compiler_options=options)()


def _with_params_of(
  config: config_lib.Config,
  state: state_lib.TrainState,
  corpus: corpus_lib.Corpus,
  mesh: jax.sharding.Mesh,
) -> tuple[state_lib.TrainState, adapter.Base | None, list[str]]:
  """The state with the parameters of --restore, and what to tell about it."""
  source, folder = config.restore, hub_folder.is_folder(config.restore)
  directory = source if folder else finder.resolve(source)
  run_dir = source if folder else os.path.dirname(os.path.dirname(directory))
  if folder:
    model = hub_folder.read_config(source)
  else:
    _remember_parent(config.run_dir, directory)
    about = meta.read(directory)
    model = meta.model_config(about)
    _check_whole(config, about)
  model = model.computed_as(config.model)
  theirs = dataclasses.replace(config, model=model)
  changes = theirs.differences(config, 'model')
  wanted, base = {'params': state.params, 'buffers': state.buffers}, None
  if config.lora.rank:
    begun = bases.begin(config, mesh, wanted)
    base = begun.base
    found = {'base': begun.params, 'buffers': begun.buffers}
    if begun.factors:
      found['params'] = begun.factors
  elif folder:
    found = _read_folder(source, model, wanted, changes)
  else:
    abstract = jax.tree.map(
      lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=a.sharding),
      wanted,
    )
    found = reader.restore_params(directory, abstract)
  if not base:  # Else they have been looked at.
    with jax.set_mesh(mesh):
      arrays.check_finite(source, found)
    if config.dpo.beta:
      found['reference'], base = bases.reference(config, mesh, directory)
  said = f'parameters of {source}{bases.note(config, base, found)}'
  notes = [said, *(f'changed: {x}' for x in changes)]
  tokenizer = hub_folder.read_tokenizer(run_dir, model)
  if tokenizer and tokenizer.sha256 != corpus.tokenizer.sha256:
    notes.append(
      f'changed: the tokenizer, {tokenizer.name} -> {corpus.tokenizer.name}'
    )
  elif tokenizer and processes.process() == 0:
    hub_folder.keep_files(run_dir, config.run_dir)  # For an export of this run.
    if corpus.has_chats:
      hub_folder.add_stop_ids(config.run_dir, tokenizer.stop_ids)
  return dataclasses.replace(state, **found), base, notes


def _check_whole(config, about) -> None:
  """Refuses to train all parameters of a run that holds an adapter."""
  if adapter.of(about) and not config.lora.rank:
    raise config_lib.UsageError(
      f'--restore={config.restore} holds an adapter; --lora.rank goes on with '
      'it, and --mode=export merges it into a folder whose parameters can all '
      'be trained.'
    )


def _remember_parent(run_dir: str, directory: str) -> None:
  """Keeps the id of the run whose parameters this one begins with."""
  parent = seal.verified(directory).get('run')
  if parent and processes.process() == 0:
    run_files.set_parent(run_dir, parent)


def _read_folder(source, model, wanted, changes) -> dict[str, Any]:
  """Arrays of a Hugging Face folder, one at a time, where `wanted` are."""
  found = {}
  for part, leaves in hub_folder.find_leaves(source, model).items():
    there = hub_names.flatten(wanted[part])
    shapes = {path: leaf.shape for path, leaf in leaves.items()}
    if shapes != {path: array.shape for path, array in there.items()}:
      raise config_lib.UsageError(
        f'--restore={source} is another model than that of the flags '
        f'({", ".join(changes)}); use its flags: --mode=import writes them.'
      )
    found[part] = hub_names.nest(
      {
        path: jax.device_put(leaves[path].read(array.dtype), array.sharding)
        for path, array in there.items()
      }
    )
  return found
