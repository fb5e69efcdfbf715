# SPDX-License-Identifier: Apache-2.0
"""What a run that starts from another model need not be told again."""

import dataclasses
import os
from typing import Any

from pipelines import tokenizer as tokenizer_lib
from zaya_jax import config as config_lib
from zaya_jax.checkpoint import folders, meta
from zaya_jax.checkpoint.reading import finder
from zaya_jax.hub import folder as hub_folder

# Settings that may differ from those of the source: its arrays fit all the
# same. These are of training and not of the model.
_OWN = {'dtype', 'remat', 'init_std', 'temperature_init'}
_FREE = {
  *_OWN, 'skip', 'rope_theta', 'rope_fraction', 'sliding_window',
  'sliding_layers', 'sliding_rope_theta', 'norm_eps',
}  # fmt: skip


def settings(config: config_lib.Config) -> config_lib.Config:
  """Takes the model and the tokenizer from `--restore`.

  Flags of the model that are at their default become those of the source, and
  so does `--data.tokenizer`. A run that goes on takes them from its own newest
  checkpoint: the source need not be there any more.

  Raises:
    UsageError: if a flag of the model asks for other arrays than there are.
    CheckpointError: if the source holds no checkpoint, or a damaged one.
    FolderError: if the settings of a Hugging Face folder cannot be read.
  """
  if not config.restore:
    return config
  own = folders.root(config.run_dir)
  newest = finder.newest(own)
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
  data = config.data
  if data.tokenizer == 'bytes' and not data.train_tokenizer:
    data = dataclasses.replace(data, tokenizer=tokenizer)
  changed = {k: v for k, v in _chosen(config.model).items() if k not in _OWN}
  own = {name: getattr(config.model, name) for name in _OWN}
  model = dataclasses.replace(model, **changed, **own)
  return dataclasses.replace(config, model=model, data=data)


def _chosen(model: config_lib.ModelConfig) -> dict[str, Any]:
  """The settings that are not at their default."""
  return {
    field.name: getattr(model, field.name)
    for field in dataclasses.fields(model)
    if getattr(model, field.name) != field.default
  }


def _check_arrays(
  config: config_lib.Config, model: config_lib.ModelConfig
) -> None:
  wrong = [
    f'--model.{name}={value} (there: {getattr(model, name)})'
    for name, value in _chosen(config.model).items()
    if name not in _FREE and value != getattr(model, name)
  ]
  if wrong:
    raise config_lib.UsageError(
      f'--restore={config.restore} is another model than the flags ask for: '
      f'{", ".join(wrong)}; leave them out, and they are taken from there.'
    )


def _tokenizer_in(folder: str) -> str:
  there = os.path.isfile(os.path.join(folder, tokenizer_lib.FILE_NAME))
  return folder if there else 'bytes'
