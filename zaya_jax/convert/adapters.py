# SPDX-License-Identifier: Apache-2.0
"""Adapters of PEFT, out of a run with --lora.* and into one."""

import os

import numpy as np

from zaya_jax import config as config_lib
from zaya_jax.checkpoint import errors, folders
from zaya_jax.checkpoint.writing import stream
from zaya_jax.convert import run_folder
from zaya_jax.hub import aside
from zaya_jax.hub import folder as hub_folder
from zaya_jax.hub import leaves as leaves_lib
from zaya_jax.hub import names as hub_names
from zaya_jax.hub.adapters import adapter, peft

_SMALL = 2**16  # Bytes of settings and header, at the most.


def export(source: str, output: str) -> None:
  """Writes the folder `output` from the adapter of the run `source`.

  Raises:
    UsageError: if it holds no adapter.
    CheckpointError: if the checkpoint is missing or damaged, or holds NaN.
  """
  found = leaves_lib.find(source)
  base = adapter.of(found.about)
  if base is None:
    raise config_lib.UsageError(
      f'--export.layout=peft writes the adapter of a run with --lora.rank, and '
      f'{source} holds a whole model; use --export.layout=native.'
    )
  lora = adapter.lora_config(found.about)
  factors = {
    name: np.asarray(leaf[()])
    for name, leaf in found.leaves.items()
    if name.startswith('params/')
  }
  _check_finite(found.path, factors)
  size = sum(values.nbytes for values in factors.values())
  with aside.folder(output, size + _SMALL + 256 * len(factors)) as partial:
    leaves = {name: _Layers(values) for name, values in factors.items()}
    peft.write(partial, lora, leaves, base.source)
  print(f'exported {source} to {output} ({size:,} bytes, an adapter of PEFT)')
  if base.choice:
    print(
      f'note: it was trained on {base.source} rounded to {base.choice}; on '
      'another base it is another model.'
    )


def _check_finite(path, factors) -> None:
  """Refuses NaN and Inf."""
  bad = [n for n, values in factors.items() if not np.isfinite(values).all()]
  if bad:
    raise errors.not_finite(path, bad)


class _Layers:
  """An array by `leaf[(n,)]`."""

  def __init__(self, values: np.ndarray):
    self.shape, self._values = values.shape, values

  def __getitem__(self, index: tuple[int, ...]) -> np.ndarray:
    return self._values[index]


def import_(config: config_lib.Config, source: str, output: str) -> None:
  """Writes the run `output` from an adapter, with --restore as its base.

  Raises:
    UsageError: if the base is not there.
    FolderError: if the folder is of another kind, or of another model.
    CheckpointError: if it holds NaN or Inf.
  """
  lora, named = peft.read_settings(source)
  where = config.restore or named
  if not os.path.isdir(where):
    raise config_lib.UsageError(
      f'--source={source} is an adapter of {named or "no model by name"}, '
      'which is no folder here; name its base with --restore.'
    )
  base = adapter.open_model(where)
  factors = peft.read(source, base.config, lora)
  _check_finite(source, factors)
  print_ = adapter.identity(base)
  found = adapter.Base(source=os.path.abspath(where), fingerprint=print_)
  size = sum(values.nbytes for values in factors.values())
  with aside.folder(output, size + _SMALL) as partial:
    _write(config, partial, output, base, found, lora, factors)
  print(f'imported {source} to {output}, an adapter of {where}')


def _write(config, partial, output, base, found, lora, factors) -> None:
  """Writes the files of the run to the folder `partial`."""
  is_folder = hub_folder.is_folder(base.path)
  home = base.path if is_folder else folders.run_of(base.path)
  tokenizer = hub_folder.read_tokenizer(home, base.config)
  hub_folder.keep_files(home, partial)
  settings = run_folder.settings(
    config,
    output,
    tokenizer,
    restore=found.source,
    model=base.config.computed_as(config.model),
    lora=lora,
  )
  known = base.about.get('tokenizer_sha256', '')
  tree = {path: _array(values) for path, values in factors.items()}
  run_folder.write(
    partial,
    settings,
    {'params': hub_names.nest(tree)},
    tokenizer.sha256 if tokenizer else known,
    more={adapter.META: found.as_json()},
  )


def _array(values: np.ndarray) -> stream.Array:
  """An array in one part."""
  every = (slice(None),) * values.ndim
  return stream.Array(
    values.shape, values.dtype, values.shape, lambda: [(every, values)]
  )
