# SPDX-License-Identifier: Apache-2.0
"""What a checkpoint says about itself, and whether a run may go on from it."""

import json
import platform
import time
from collections.abc import Set
from importlib import metadata
from typing import Any

from zaya_jax import config as config_lib
from zaya_jax.checkpoint import errors, folders, seal

_REQUIRED = ('arrays', 'data_index')  # In every meta.
_PACKAGES = ('jax', 'flax', 'optax', 'orbax-checkpoint', 'grain')
# Settings that say what to do now rather than what the run is.
_PER_CALL = {
  'mode',
  'run_dir',
  'source',
  'output',
  'resume',
  'restore',
  'distributed',
}


def describe(
  config: config_lib.Config,
  *,
  flags: str,
  tokenizer_sha256: str,
  dataset_sha256: str,
  tokens: int,
  metrics: dict[str, float],
) -> dict[str, Any]:
  """The meta of a checkpoint, all of it JSON.

  Args:
    config: the settings of the run.
    flags: the resolved flagfile, which repeats the run.
    tokenizer_sha256: of the tokenizer file.
    dataset_sha256: of the manifests of the prepared data.
    tokens: training tokens seen.
    metrics: of this step: train/loss and, if it was evaluated, val/loss and
      val/bpb.
  """
  return {
    'flags': flags,
    'config': _plain(config),
    'versions': versions(),
    'tokenizer_sha256': tokenizer_sha256,
    'dataset_sha256': dataset_sha256,
    'tokens': tokens,
    'metrics': metrics,
    'time': time.time(),
  }


def read(directory: str) -> dict[str, Any]:
  """The meta of a checkpoint, with the metrics that its seal has later.

  Raises:
    CheckpointError: if it cannot be read, or is none.
  """
  found = seal.load_json(directory, f'{folders.META}/metadata')
  if not isinstance(found, dict):
    raise errors.damaged(directory, 'the meta is no object')
  if missing := [key for key in _REQUIRED if key not in found]:
    raise errors.damaged(directory, f'the meta lacks {missing[0]}')
  try:
    later = seal.verified(directory).get('metrics', {})
  except seal.BrokenError as error:
    if error.reason != 'unsealed':  # As when it is sealed now.
      raise
    return found
  return {**found, 'metrics': {**found.get('metrics', {}), **later}}


def model_config(meta: dict[str, Any]) -> config_lib.ModelConfig:
  """The model of a checkpoint, from its meta."""
  return config_lib.ModelConfig(**_section(meta, 'model'))


def data_config(meta: dict[str, Any]) -> config_lib.DataConfig:
  """How a checkpoint's run, or the phase of it, has read its data."""
  return config_lib.DataConfig(**_section(meta, 'data'))


def check_same_model(
  meta: dict[str, Any], config: config_lib.Config
) -> list[str]:
  """Compares the settings of a checkpoint with those of the run now.

  Args:
    meta: of the checkpoint to go on from.
    config: the settings now.

  Returns:
    The other flags that differ, as '--optim.lr: 0.002 -> 0.001'; a run may go
    on with them, and should say so.

  Raises:
    CheckpointError: with exit code 2, listing the flags that differ and give
      the state other arrays or the arrays another meaning.
  """
  before, now = meta['config'], _plain(config)
  how = config_lib.OF_THE_RUN  # Changes nothing of what the arrays mean.
  model = _changes(before['model'], now['model'], 'model.', how)
  if model:
    raise errors.CheckpointError(
      f'--run_dir={config.run_dir} holds checkpoints of another model '
      f'({", ".join(model)}); use its flags or another --run_dir.',
      errors.USAGE,
    )
  none = _plain(config_lib.Config())['lora']  # Of runs before there were any.
  adapter = _changes(before.get('lora', none), now['lora'], 'lora.', set())
  if adapter:
    raise errors.CheckpointError(
      f'--run_dir={config.run_dir} holds checkpoints of another adapter '
      f'({", ".join(adapter)}); use its flags or another --run_dir.',
      errors.USAGE,
    )
  adapter = _changes(_quant(before), _quant(now), '', set())
  if adapter and now['lora']['rank']:
    raise errors.CheckpointError(
      f'--run_dir={config.run_dir} holds checkpoints of an adapter of another '
      f'base ({", ".join(adapter)}); use its flags or another --run_dir.',
      errors.USAGE,
    )
  if before['optim']['name'] != config.optim.name:
    raise errors.CheckpointError(
      f'--run_dir={config.run_dir} holds checkpoints of another optimizer '
      f'(--optim.name: {before["optim"]["name"]} -> {config.optim.name}); use '
      'that one, or take the parameters alone into another --run_dir with '
      f'--restore={config.run_dir}.',
      errors.USAGE,
    )
  return _changes(before, now, '', {'model', *_PER_CALL})


def _quant(settings) -> dict[str, Any]:
  """How the base of an adapter is rounded."""
  kind = settings.get('quant', 'none')
  targets = settings.get('quantization', {}).get('targets', [])
  return {'quant': kind, 'quant.targets': targets if kind != 'none' else []}


def versions() -> dict[str, str]:
  """Of Python and of packages that a run depends on, here."""
  found = {name: metadata.version(name) for name in _PACKAGES}
  return {'python': platform.python_version(), **found}


def _section(meta, name) -> dict[str, Any]:
  """The settings of one section, as the dataclasses have them."""
  return {
    key: tuple(value) if isinstance(value, list) else value
    for key, value in meta['config'][name].items()
  }


def _changes(
  before: Any, now: Any, prefix: str, ignored: Set[str]
) -> list[str]:
  """The leaves of nested settings that differ, as '--name: old -> new'."""
  found = []
  for name in sorted({**before, **now}):
    # A setting that one version of the program does not have says nothing.
    if name in ignored or name not in before or name not in now:
      continue
    old, new = before[name], now[name]
    if isinstance(new, dict):
      found += _changes(old, new, f'{prefix}{name}.', set())
    elif old != new:
      found.append(f'--{prefix}{name}: {old} -> {new}')
  return found


def _plain(config: config_lib.Config) -> dict[str, Any]:
  """The settings as they come back from JSON."""
  return json.loads(json.dumps(config.as_dict()))
