# SPDX-License-Identifier: Apache-2.0
"""--mode=export: a run, or a folder of the other layout, for transformers.

The tensors keep their type and are copied one after another, so memory does
not grow with the model.
"""

import dataclasses
import functools
import math
import os
import pathlib
import shutil
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from pipelines import tokenizer as tokenizer_lib
from zaya_jax import config as config_lib
from zaya_jax.checkpoint import errors, folders
from zaya_jax.convert import adapters
from zaya_jax.hub import aside, card, packing
from zaya_jax.hub import config as hub_config
from zaya_jax.hub import files as hub_files
from zaya_jax.hub import folder as hub_folder
from zaya_jax.hub import leaves as leaves_lib
from zaya_jax.hub import names as hub_names
from zaya_jax.hub.adapters import adapter
from zaya_jax.hub.quantized import choice as choice_lib
from zaya_jax.hub.quantized import formats, written
from zaya_jax.hub.tensors import shards, weights

_BIAS = 'buffers/layers/router/balance_bias'
_SMALL = 2**16  # Bytes of settings and card, at the most.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
  """What is exported.

  Attributes:
    config: the model.
    leaves: 'params/PATH' and 'buffers/PATH' to arrays.
    path: the checkpoint or Hugging Face folder.
    folder: the run or Hugging Face folder, where files of an import are.
    kept: the config.json of an import; empty: there was none.
    tokenizer: None: it did not come with the checkpoint.
    step: of the checkpoint.
    about: its meta; empty for a Hugging Face folder.
  """

  config: config_lib.ModelConfig
  leaves: Mapping[str, leaves_lib.Leaf]
  path: str
  folder: str
  kept: dict[str, Any]
  tokenizer: tokenizer_lib.Tokenizer | None
  step: int = 0
  about: dict[str, Any] = dataclasses.field(default_factory=dict)


def main(config: config_lib.Config) -> None:
  """Writes the folder `--output` from the model `--source`.

  Raises:
    UsageError: if a flag is missing, `--output` is in use or in `--source`, or
      the layout cannot represent the model.
    CheckpointError: if the checkpoint is missing or damaged, or an array of the
      model holds NaN or Inf.
    FolderError: if a Hugging Face folder cannot be read, or the disk is full.
  """
  source, output = config.source or config.run_dir, config.output
  output = aside.check(os.path.abspath(output), source)
  if config.export.layout == 'peft':
    adapters.export(source, output)
    return
  found, quant = _open(source, config.restore), choice_lib.given(config)
  packing.wanted(found, quant)
  layout = config.export.layout
  hub_config.to_hf(found.config, layout)  # Refused now rather than at the end.
  notes = find_notes(found, layout)
  print(*(f'note: {note}' for note in notes), sep='\n', end='\n' * any(notes))
  tensors = plan(found, layout, config.export.dtype, quant)
  size = sum(tensor.nbytes for tensor in tensors)
  with aside.folder(output, size + _bytes_besides(found, tensors)) as partial:
    _write_small_files(
      pathlib.Path(partial), found, layout, tensors, notes, quant
    )
    shards.write(partial, tensors, shards.SHARD_BYTES)
  print(f'exported {source} to {output} ({size:,} bytes, {layout} layout)')


def find_notes(source: Source, layout: hub_names.Layout) -> list[str]:
  """What a user of the folder should know, a sentence each."""
  notes, bias = [], source.leaves[_BIAS]
  rows = [bias[(n,)] for n in range(bias.shape[0])]
  # A probability is at most 1: elsewhere some expert is always ahead.
  if hub_files.skip_differs(source.config, layout) and any(
    row[-1] + 1 >= row[:-1].max() for row in rows
  ):
    does = {'zero': 'drops them', 'identity': 'lets p * h pass'}
    notes.append(
      f'the model has --model.skip={source.config.skip}, but code of the '
      f'{layout} layout treats tokens of the skip class otherwise '
      f'({does[hub_config.SKIP[layout]]}): it is the same function only while '
      'no token chooses that class, and the balancing bias does not prevent it'
    )
  if layout == 'native' and any(row[-1] != -1 for row in rows):
    notes.append(
      'transformers sets the balancing bias of the skip class to -1 whenever '
      'it loads a model, and this one has other values there: after '
      'from_pretrained, copy balancing_biases from the safetensors'
    )
  base = adapter.of(source.about)
  if base and base.choice:
    notes.append(
      f'the base of the adapter was rounded to {base.choice} for training; '
      'what is written is that rounded base with the adapter merged in'
    )
  if source.tokenizer is None:
    notes.append(f'{source.folder} has no tokenizer; none is written')
  return notes


def plan(
  source: Source,
  layout: hub_names.Layout,
  dtype: str,
  quant: choice_lib.Choice = choice_lib.NONE,
) -> list[shards.Tensor]:
  """The tensors of the folder; no value is read yet.

  Args:
    source: the model.
    layout: whose names.
    dtype: 'auto' (as stored), 'float32' or 'bfloat16'. The balancing bias is
      not rounded: it decides between nearly equal experts.
    quant: which matrices are rounded to few bits, whatever `dtype` is.
  """
  tables = {'params': hub_names.PARAMS, 'buffers': hub_names.BUFFERS}
  found = []
  for part, rows in tables.items():
    for row in rows:
      leaf = source.leaves.get(f'{part}/{row.path}')
      if leaf is None:
        continue
      wanted = leaf.dtype
      if dtype != 'auto':
        wanted = np.dtype('float32') if part == 'buffers' else np.dtype(dtype)
      kind = quant.of(row.path) if part == 'params' else None
      for name, index in row.tensors(layout, leaf.shape):
        read = functools.partial(_read, source, part, row, index)
        shape = row.shape_of(index, leaf.shape)
        if kind:
          found += written.tensors(name, shape, kind, read)
          continue
        found.append(shards.Tensor(name, shape, wanted, read))
  return found


def _read(source: Source, part: str, row: hub_names.Row, index) -> np.ndarray:
  """The values of one tensor, none of them NaN or Inf."""
  name = f'{part}/{row.path}'
  values = source.leaves[name][index]
  if not np.isfinite(values).all():
    raise errors.not_finite(source.path, [name])
  return row.axes.write(values)


def _bytes_besides(source: Source, tensors: list[shards.Tensor]) -> int:
  """Bytes of all that is written besides the tensors, at the most."""
  files = [os.path.join(source.folder, name) for name in hub_folder.KEPT]
  kept = sum(os.path.getsize(file) for file in files if os.path.isfile(file))
  tokenizer = len(source.tokenizer.to_json()) if source.tokenizer else 0
  # Each tensor has a line in a header, and one in the index.
  names = sum(256 + 2 * len(tensor.name) for tensor in tensors)
  return _SMALL + kept + tokenizer + names


def _rounded(source, layout, quant) -> Iterator[tuple[str, int, str]]:
  """Name, inputs and kind of each tensor that is rounded."""
  for name, shape, path in _stored(source, layout):
    if kind := quant.of(path):
      yield name, shape[-1], kind


def _stored(source, layout) -> Iterator[tuple[str, tuple[int, ...], str]]:
  """Name, shape and path of each tensor of parameters."""
  for row in hub_names.PARAMS:
    leaf = source.leaves.get(f'params/{row.path}')
    for name, index in row.tensors(layout, leaf.shape) if leaf else ():
      yield name, row.shape_of(index, leaf.shape), row.path


def _write_small_files(folder, source, layout, tensors, notes, quant) -> None:
  plain = {tensor.name: tensor.dtype.name for tensor in tensors}
  named = {path: name for name, _, path in _stored(source, layout)}
  # Of all that is not rounded.
  dtype = plain.get(hub_names.EMBED, plain[named['final_norm']])
  length = source.about['config']['data']['seq_len'] if source.about else 4096
  defaults = hub_files.defaults(source.tokenizer, length)
  settings = hub_files.model_settings(
    source.config, layout, dtype, source.kept, defaults
  )
  settings.pop(formats.SETTINGS, None)  # Of a folder that was rounded before.
  if quant:
    rounded = _rounded(source, layout, quant)
    settings[formats.SETTINGS] = written.settings(rounded)
  for name in hub_folder.KEPT:
    if source.kept and os.path.isfile(os.path.join(source.folder, name)):
      shutil.copyfile(os.path.join(source.folder, name), folder / name)
  hub_files.write_json(folder / hub_folder.CONFIG, settings)
  if source.tokenizer:
    hub_files.write_tokenizer(
      folder, source.tokenizer, settings.get('max_position_embeddings', length)
    )
    if not (folder / hub_files.GENERATION).exists():
      generation = hub_files.generation_settings(
        source.tokenizer, source.config.vocab_size
      )
      hub_files.write_json(folder / hub_files.GENERATION, generation)
  text = card.render(
    layout=layout,
    parameters=sum(math.prod(s) for _, s, _ in _stored(source, layout)),
    dtype=str(quant or dtype),
    step=source.step,
    about=source.about,
    notes=notes,
  )
  (folder / 'README.md').write_text(text, encoding='utf-8')


def _open(path: str, base: str) -> Source:
  """A run directory, one checkpoint, or a folder of another layout or type.

  Args:
    path: where it is.
    base: of `adapter.open_model`.
  """
  found = adapter.open_model(path, base)
  is_folder = hub_folder.is_folder(path)
  folder = path if is_folder else folders.run_of(found.path)
  name = hub_folder.CONFIG if is_folder else hub_folder.KEPT_CONFIG
  kept = os.path.join(folder, name)
  return Source(
    config=found.config,
    leaves=found.leaves,
    path=found.path,
    folder=folder,
    kept=weights.read_json(kept) if os.path.exists(kept) else {},
    tokenizer=(
      hub_folder.read_tokenizer(path, found.config)
      if is_folder
      else _tokenizer_of(folder, found.about['tokenizer_sha256'])
    ),
    step=0 if is_folder else folders.step_of(found.path),
    about=found.about,
  )


def _tokenizer_of(run_dir, sha256) -> tokenizer_lib.Tokenizer | None:
  """The tokenizer of a run, if it is the one that it was trained with."""
  file = os.path.join(run_dir, tokenizer_lib.FILE_NAME)
  found = tokenizer_lib.load(file if os.path.exists(file) else 'bytes')
  return found if found.sha256 == sha256 else None
