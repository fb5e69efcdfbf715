# SPDX-License-Identifier: Apache-2.0
"""--mode=export: a run, or a folder of the other layout, for transformers.

The tensors keep their type and are copied one after another, so memory does
not grow with the model.
"""

import dataclasses
import functools
import os
import pathlib
import shutil
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from pipelines import tokenizer as tokenizer_lib
from zaya_jax import config as config_lib
from zaya_jax.checkpoint import errors, folders, meta
from zaya_jax.checkpoint.reading import finder, lazy
from zaya_jax.hub import aside, card, shards, weights
from zaya_jax.hub import config as hub_config
from zaya_jax.hub import files as hub_files
from zaya_jax.hub import folder as hub_folder
from zaya_jax.hub import names as hub_names

_BIAS = 'buffers/layers/router/balance_bias'
_SMALL = 2**16  # Bytes of settings and card, at the most.


class Leaf(Protocol):
  """One of our arrays, of which parts can be read."""

  shape: tuple[int, ...]
  dtype: np.dtype

  def __getitem__(self, index: tuple[int, ...]) -> np.ndarray: ...


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
  leaves: Mapping[str, Leaf]
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
  found = (
    _open_folder(source) if hub_folder.is_folder(source) else _open_run(source)
  )
  layout = config.export.layout
  hub_config.to_hf(found.config, layout)  # Refused now rather than at the end.
  notes = find_notes(found, layout)
  print(*(f'note: {note}' for note in notes), sep='\n', end='\n' * any(notes))
  tensors = plan(found, layout, config.export.dtype)
  size = sum(tensor.nbytes for tensor in tensors)
  with aside.folder(output, size + _bytes_besides(found, tensors)) as partial:
    _write_small_files(pathlib.Path(partial), found, layout, tensors, notes)
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
  if source.tokenizer is None:
    notes.append(f'{source.folder} has no tokenizer; none is written')
  return notes


def plan(
  source: Source, layout: hub_names.Layout, dtype: str
) -> list[shards.Tensor]:
  """The tensors of the folder; no value is read yet.

  Args:
    source: the model.
    layout: whose names.
    dtype: 'auto' (as stored), 'float32' or 'bfloat16'. The balancing bias is
      not rounded: it decides between nearly equal experts.
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
      for name, index in row.tensors(layout, leaf.shape):
        read = functools.partial(_read, source, part, row, index)
        shape = row.shape_of(index, leaf.shape)
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


def _write_small_files(folder, source, layout, tensors, notes) -> None:
  embed = next(t for t in tensors if t.name == hub_names.EMBED)
  length = source.about['config']['data']['seq_len'] if source.about else 4096
  defaults = hub_files.defaults(source.tokenizer, length)
  settings = hub_files.model_settings(
    source.config, layout, embed.dtype.name, source.kept, defaults
  )
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
    parameters=sum(
      tensor.nbytes // tensor.dtype.itemsize
      for tensor in tensors
      if not tensor.name.endswith('balancing_biases')  # Not trained.
    ),
    dtype=embed.dtype.name,
    step=source.step,
    about=source.about,
    notes=notes,
  )
  (folder / 'README.md').write_text(text, encoding='utf-8')


def _open_run(path: str) -> Source:
  """A run directory or one checkpoint."""
  directory = finder.resolve(path)
  about = meta.read(directory)
  run_dir = folders.run_of(directory)
  kept = os.path.join(run_dir, hub_folder.KEPT_CONFIG)
  file = os.path.join(run_dir, tokenizer_lib.FILE_NAME)
  tokenizer = tokenizer_lib.load(file if os.path.exists(file) else 'bytes')
  same = tokenizer.sha256 == about['tokenizer_sha256']
  return Source(
    config=meta.model_config(about),
    leaves=lazy.leaves(directory),
    path=directory,
    folder=run_dir,
    kept=weights.read_json(kept) if os.path.exists(kept) else {},
    tokenizer=tokenizer if same else None,
    step=folders.step_of(directory),
    about=about,
  )


def _open_folder(path: str) -> Source:
  """A Hugging Face folder, to be written in another layout or type."""
  config = hub_folder.read_config(path)
  return Source(
    config=config,
    leaves={
      f'{part}/{name}': _FolderLeaf(leaf)
      for part, leaves in hub_folder.find_leaves(path, config).items()
      for name, leaf in leaves.items()
    },
    path=path,
    folder=path,
    kept=weights.read_json(os.path.join(path, hub_folder.CONFIG)),
    tokenizer=hub_folder.read_tokenizer(path, config),
  )


class _FolderLeaf:
  """A leaf of a Hugging Face folder by parts, whatever its tensors are."""

  def __init__(self, leaf: hub_folder.Leaf):
    self.shape, self.dtype = leaf.shape, leaf.dtype
    self._read = leaf.row.axes.read
    self._tensors = dict(leaf.sources)
    self._layer = functools.lru_cache(maxsize=1)(self._read_layer)

  def __getitem__(self, index: tuple[int, ...]) -> np.ndarray:
    if index in self._tensors:
      return self._read(self._tensors[index].read())
    return self._layer(index[0])[index[1:]]

  def _read_layer(self, n: int) -> np.ndarray:
    if (n,) in self._tensors:
      return self[(n,)]
    return np.stack([self[(n, e)] for e in range(self.shape[1])])
