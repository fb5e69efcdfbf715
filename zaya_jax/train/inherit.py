# SPDX-License-Identifier: Apache-2.0
"""What a run that starts from another model, or goes on, need not be told."""

import dataclasses
import json
import os
import pathlib
from typing import Any

from pipelines import tokenizer as tokenizer_lib
from zaya_jax import config as config_lib
from zaya_jax.checkpoint import folders, meta
from zaya_jax.checkpoint.reading import finder, resuming
from zaya_jax.config.recipe import segments
from zaya_jax.hub import folder as hub_folder
from zaya_jax.hub.adapters import peft
from zaya_jax.optim import schedule as schedule_lib
from zaya_jax.runtime import clock, processes

_MEASURED = 20  # Steps that tell the speed of a run.

# Settings that a run may change: the arrays of its source fit all the same.
_FREE = {
  'skip', 'rope_theta', 'rope_fraction', 'sliding_window', 'sliding_layers',
  'sliding_rope_theta', 'norm_eps',
}  # fmt: skip


def settings(config: config_lib.Config) -> config_lib.Config:
  """Takes the model and the tokenizer from `--restore`.

  What nobody said (`Config.inherited`) is as the source says. A run that goes
  on takes it from its own newest checkpoint: the source need not be there any
  more.

  Raises:
    UsageError: if a flag of the model asks for other arrays than there are.
    CheckpointError: if the source holds no checkpoint, or a damaged one.
    FolderError: if the settings of a Hugging Face folder cannot be read.
  """
  if not config.restore:
    return config
  peft.check_model(config.restore)
  own = folders.root(config.run_dir)
  newest = resuming.newest(config.run_dir) if os.path.isdir(own) else None
  goes_on = newest is not None
  if goes_on:
    about = meta.read(os.path.join(own, str(newest)))
    model = meta.model_config(about)
    tokenizer = about['config']['data']['tokenizer']
  elif hub_folder.is_folder(config.restore):
    model = hub_folder.read_config(config.restore)
    tokenizer = _tokenizer_in(config.restore)
  else:
    directory = finder.resolve(config.restore)
    model = meta.model_config(meta.read(directory))
    tokenizer = _tokenizer_in(os.path.dirname(os.path.dirname(directory)))
  if not goes_on:  # Else the checkpoint itself is compared.
    _check_arrays(config, model)
  data, open_ = config.data, config.inherited
  if 'data.tokenizer' in open_ and not data.train_tokenizer:
    data = dataclasses.replace(data, tokenizer=tokenizer)
  model = dataclasses.replace(model, **_said(config)).computed_as(config.model)
  given = config.given | open_  # Nothing is left open.
  optim = config.optim
  # The bias is the base's, and no adapter could hold it. What is compared has
  # one bias in common.
  if config.lora.rank or config.dpo.beta:
    optim = dataclasses.replace(optim, balance_lr=0.0, balance_centered=False)
  return dataclasses.replace(
    config, model=model, data=data, optim=optim, given=given
  )


def length(config: config_lib.Config) -> config_lib.Config:
  """The steps of a run whose length is in hours.

  Those that its newest checkpoint knows; else some in which its speed is
  measured, at the peak of the learning rate, until `timed` says the rest.
  """
  if not config.hours:
    return config
  own = folders.root(config.run_dir)
  done = (resuming.newest(config.run_dir) if os.path.isdir(own) else None) or 0
  if done:
    before = meta.read(os.path.join(own, str(done)))['config']
    ends = before['optim']['schedule_steps']
    if before.get('hours') == config.hours and ends != segments.UNTIMED:
      return _ending(config, before['num_steps'], ends)
  steps = max(done, config.optim.warmup_steps) + _MEASURED
  return _ending(config, steps, segments.UNTIMED)


def timed(config: config_lib.Config) -> config_lib.Config:
  """The steps that fit into the hours of a run, once its speed is known."""

  def count() -> int:
    lines = pathlib.Path(config.run_dir, 'metrics.jsonl').read_text()
    rows = map(json.loads, lines.splitlines())
    *_, last = (row for row in rows if row.get('time/step_s'))
    left = 3600 * config.hours - clock.elapsed()
    return last['step'] + max(1, int(left / last['time/step_s']))

  steps = processes.first_says(count)
  return _ending(config, steps, config.optim.schedule_steps or steps)


def _ending(config, steps, schedule_steps) -> config_lib.Config:
  optim = dataclasses.replace(config.optim, schedule_steps=schedule_steps)
  return dataclasses.replace(config, num_steps=steps, optim=optim)


def schedule(
  config: config_lib.Config, about: dict[str, Any]
) -> tuple[config_lib.Config, list[str]]:
  """Keeps the schedule of a run that goes on to another number of steps.

  Args:
    config: whose `--optim.schedule_steps` decides, unless it is 0.
    about: the meta of the checkpoint to go on from.

  Returns:
    The settings to go on with, and what to tell the user about them.
  """
  if config.course:  # It says all rates.
    return config, []
  before, last = about['config'], config.num_steps
  steps = before['optim'].get('schedule_steps') or before['num_steps']
  if config.optim.schedule_steps or steps == last:
    return config, []
  optim = dataclasses.replace(config.optim, schedule_steps=steps)
  config = dataclasses.replace(config, optim=optim)
  rate = float(schedule_lib.make_schedule(optim, last)(last))
  end = f'stays at {rate:g} after it' if steps < last else f'ends at {rate:g}'
  change = 'stretches' if steps < last else 'shortens'
  if optim.schedule == 'constant':
    return config, []
  note = (
    f'the learning rate follows the schedule of {steps:,} steps that was run '
    f'and {end}; --optim.schedule_steps={last} {change} it'
  )
  return config, [note]


def _said(config: config_lib.Config) -> dict[str, Any]:
  """The settings of the model that the flags decide, by name."""
  open_ = config.inherited
  return {
    field.name: getattr(config.model, field.name)
    for field in dataclasses.fields(config.model)
    if f'model.{field.name}' not in open_
    and field.name not in config_lib.OF_THE_RUN
  }


def _check_arrays(
  config: config_lib.Config, model: config_lib.ModelConfig
) -> None:
  """Refuses flags that ask for other arrays than those of the source."""
  same_classes = (config.model.skip == 'off') == (model.skip == 'off')
  free = _FREE if same_classes else _FREE - {'skip'}
  wrong = [
    f'--model.{name}={value} (there: {getattr(model, name)})'
    for name, value in _said(config).items()
    if name not in free and value != getattr(model, name)
  ]
  if wrong:
    raise config_lib.UsageError(
      f'--restore={config.restore} is another model than the flags ask for: '
      f'{", ".join(wrong)}; leave them out, and they are taken from there.'
    )


def _tokenizer_in(folder: str) -> str:
  there = os.path.isfile(os.path.join(folder, tokenizer_lib.FILE_NAME))
  return folder if there else 'bytes'
