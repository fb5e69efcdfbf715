# SPDX-License-Identifier: Apache-2.0
"""Reads a Hugging Face ZAYA folder of either public layout.

Neither torch nor transformers is needed.
"""

import dataclasses
import json
import math
import os
import shutil
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pipelines import tokenizer as tokenizer_lib
from zaya_jax import config as config_lib
from zaya_jax.hub import config as hub_config
from zaya_jax.hub import names as hub_names
from zaya_jax.hub.quantized import stored
from zaya_jax.hub.tensors import errors, weights
from zaya_jax.model import zaya

# Files that a run keeps, so that an export can give them back.
KEPT = (
  'tokenizer.json',
  'tokenizer_config.json',
  'special_tokens_map.json',
  'chat_template.jinja',
  'generation_config.json',
)
CONFIG = 'config.json'
KEPT_CONFIG = 'hf_config.json'  # Its name in a run, which has a config.json.
_BLOCK = 64 * 2**20  # Bytes of a large tensor that are read at once.


@dataclasses.dataclass(frozen=True)
class Leaf:
  """One array of ours, and the tensors that it is made of.

  Attributes:
    shape: of the array.
    dtype: the widest of its tensors, so that nothing is lost.
    chunk: the shape of a part; each part is made of whole chunks.
    sources: the tensor of each index; None: there is none, and zeros stand for
      it (the unused first EDA vector).
  """

  row: hub_names.Row
  shape: tuple[int, ...]
  dtype: np.dtype
  chunk: tuple[int, ...]
  sources: tuple[tuple[tuple[int, ...], Any], ...]

  @property
  def nbytes(self) -> int:
    """Bytes of the array."""
    return math.prod(self.shape) * self.dtype.itemsize

  def parts(self) -> Iterator[tuple[Any, np.ndarray]]:
    """Yields (index, values) that together fill the array."""
    for index, tensor in self.sources:
      if tensor is None:
        yield index, np.zeros(self.shape[len(index) :], self.dtype)
      elif not self.row.stacked or len(index) < _axes(self.row):
        # Large: a block of rows of an embedding, or one expert of a layer.
        step = self.chunk[len(index)]
        for first in range(0, tensor.shape[0], step):
          rows = slice(first, min(first + step, tensor.shape[0]))
          part = self.row.axes.read(tensor.read(rows))
          yield (*index, rows), part.astype(self.dtype, copy=False)
      else:
        part = self.row.axes.read(tensor.read())
        yield index, part.astype(self.dtype, copy=False)

  def read(self, dtype: Any = np.float32) -> np.ndarray:
    """The whole array in host memory."""
    out = np.empty(self.shape, dtype)
    for index, values in self.parts():
      out[index] = values
    return out


def is_folder(path: str) -> bool:
  """Whether `path` holds a Hugging Face model, of whatever kind."""
  has = lambda name: os.path.isfile(os.path.join(path, name))
  names = (CONFIG, weights.SINGLE, weights.INDEX, 'pytorch_model.bin')
  return any(map(has, names)) and not has('config.flags')


def read_config(path: str) -> config_lib.ModelConfig:
  """Translates `config.json` of the folder `path`.

  Raises:
    FolderError: if it is missing, or says what our model cannot represent.
  """
  file = os.path.join(path, CONFIG)
  given = weights.read_json(file)
  try:
    return hub_config.translate(file, given)
  except config_lib.UsageError as error:  # A rule of ours names our setting.
    raise errors.FolderError(f'{file}: {error}') from error


def read_notes(path: str) -> tuple[str, ...]:
  """What a user should know about how the folder was understood."""
  return hub_config.notes(weights.read_json(os.path.join(path, CONFIG)))


def read_stop_ids(path: str, config: str = CONFIG) -> tuple[int, ...]:
  """Tokens that end a text, by the folder's generation settings or model.

  Args:
    path: a Hugging Face folder, or a run that keeps its files.
    config: the name of the model's settings in it.

  Raises:
    FolderError: if they cannot be read.
  """
  file = os.path.join(path, config)
  stop = weights.read_json(file).get('eos_token_id', 106)
  generation = os.path.join(path, 'generation_config.json')
  if os.path.exists(generation):
    file = generation
    stop = weights.read_json(file).get('eos_token_id', stop)
  found = stop if isinstance(stop, list) else [] if stop is None else [stop]
  if any(type(x) is not int for x in found):
    raise errors.FolderError(
      f'{file}: eos_token_id is {stop!r}; it must be a whole number, or a list '
      'of them.'
    )
  return tuple(found)


def read_max_positions(path: str, config: str = CONFIG) -> int | None:
  """The longest text that the model was made for, if its settings tell."""
  kept = weights.read_json(os.path.join(path, config))
  found = kept.get('max_position_embeddings')
  return found if type(found) is int and found > 0 else None


def read_tokenizer(
  folder: str, model: config_lib.ModelConfig
) -> tokenizer_lib.Tokenizer | None:
  """The tokenizer of a folder; None: it has none.

  Raises:
    FolderError: if it is damaged, or has more ids than the model.
  """
  path = os.path.join(folder, tokenizer_lib.FILE_NAME)
  if not os.path.exists(path):
    return None
  try:
    found = tokenizer_lib.load(path)
  except ValueError as error:  # It names a flag that nobody set.
    what = str(error).removeprefix('--data.tokenizer=')
    raise errors.FolderError(what) from error
  if found.vocab_size > model.vocab_size:
    raise errors.FolderError(
      f'{path} has {found.vocab_size} ids, but the model {model.vocab_size} '
      '(vocab_size in config.json); it is the tokenizer of another model.'
    )
  return found


def keep_files(source: str, run_dir: str) -> None:
  """Copies what an export gives back: tokenizer, template, settings.

  Raises:
    FolderError: if one of them is a link out of the folder.
  """
  config = KEPT_CONFIG if not is_folder(source) else CONFIG
  for name, target in (*((n, n) for n in KEPT), (config, KEPT_CONFIG)):
    if os.path.exists(os.path.join(source, name)):
      path = weights.inside(source, name)
      shutil.copyfile(path, os.path.join(run_dir, target))


def add_stop_ids(run_dir: str, stop_ids: Sequence[int]) -> None:
  """Lets the generation settings, if any are kept, end a text at these too."""
  if not os.path.exists(os.path.join(run_dir, KEPT_CONFIG)):
    return
  path = os.path.join(run_dir, 'generation_config.json')
  kept = weights.read_json(path) if os.path.exists(path) else {}
  kept.pop('_from_model_config', None)  # transformers would make it anew.
  ids = dict.fromkeys((*read_stop_ids(run_dir, KEPT_CONFIG), *stop_ids))
  kept['eos_token_id'] = list(ids)
  with open(path, 'w', encoding='utf-8') as file:
    json.dump(kept, file, indent=2)


def find_leaves(
  path: str, config: config_lib.ModelConfig
) -> dict[str, dict[str, Leaf]]:
  """What each of our arrays is made of; only headers are read.

  Args:
    path: folder with `model.safetensors`, or its shards and their index.
    config: the model, from `read_config`.

  Returns:
    {'params': {path: leaf}, 'buffers': {path: leaf}}.

  Raises:
    FolderError: if a tensor is missing, unexpected, or another than it must be.
  """
  given = weights.read_json(os.path.join(path, CONFIG))
  layout, there = hub_config.layout_of(given), weights.find(path)
  tensors = stored.resolve(os.path.join(path, CONFIG), given, there)
  shapes = jax.eval_shape(lambda key: zaya.init(config, key), jax.random.key(0))
  used: set[str] = set()
  tables = {'params': hub_names.PARAMS, 'buffers': hub_names.BUFFERS}
  found = {}
  for (part, rows), tree in zip(tables.items(), shapes, strict=True):
    wanted = hub_names.flatten(tree)
    found[part] = {
      row.path: _leaf(path, row, layout, wanted[row.path].shape, tensors, used)
      for row in rows
      if row.path in wanted
    }
  if config.tie_embeddings and hub_names.HEAD in tensors:
    _check_copy(path, tensors[hub_names.HEAD], tensors[hub_names.EMBED])
    used.add(hub_names.HEAD)
  if unused := sorted(tensors.keys() - used):
    raise errors.FolderError(
      f'{path} has {len(unused)} tensors that its config.json does not '
      f'explain, such as {unused[0]}; they would be lost.'
    )
  return found


def read_params(
  path: str, config: config_lib.ModelConfig
) -> tuple[dict[str, Any], dict[str, Any]]:
  """Reads every tensor of the folder `path`; arguments as `find_leaves`.

  Returns:
    params, buffers: nested dicts of float32 arrays in the structure of
      `zaya.init`, on the default device.

  Raises:
    FolderError: as `find_leaves`.
  """
  params, buffers = (
    hub_names.nest(
      {name: jnp.asarray(leaf.read()) for name, leaf in part.items()}
    )
    for part in find_leaves(path, config).values()
  )
  return params, buffers


def _leaf(path, row, layout, shape, tensors, used) -> Leaf:
  """Finds the tensors of one leaf, and marks them as used."""
  sources = {}
  for name, index in row.tensors(layout, shape):
    if name not in tensors:
      raise errors.FolderError(
        f'{path} has no tensor {name}, which its config.json asks for; the '
        'folder is incomplete or of another model.'
      )
    wanted, tensor = row.shape_of(index, shape), tensors[name]
    if tensor.shape != wanted:
      raise errors.FolderError(
        f'{path}: tensor {name} has shape {tensor.shape}, but its config.json '
        f'asks for {wanted}.'
      )
    used.add(name)
    sources[index] = tensor
  kinds = {tensor.dtype for tensor in sources.values()}
  if row.path == hub_names.EDA:
    sources = {(0,): None, **sources}
  dtype = kinds.pop() if len(kinds) == 1 else np.dtype(np.float32)
  rows = max(1, _BLOCK * shape[0] // max(1, math.prod(shape) * dtype.itemsize))
  axes = _axes(row)
  chunk = (1,) * axes + shape[axes:] if row.stacked else (rows, *shape[1:])
  chunk = tuple(min(pair) for pair in zip(chunk, shape, strict=True))
  return Leaf(row, shape, dtype, chunk, tuple(sources.items()))


def _axes(row: hub_names.Row) -> int:
  """Leading axes of a stacked leaf that are stored apart: layers, experts."""
  return 2 if row.path.startswith('layers/experts/') else 1


def _check_copy(path, copy, original) -> None:
  """Accepts a stored copy of a tied tensor if it is one."""
  same = copy.shape == original.shape
  step = max(1, _BLOCK // max(1, 4 * original.shape[-1]))
  for first in range(0, original.shape[0], step) if same else ():
    rows = slice(first, first + step)
    same = same and np.array_equal(copy.read(rows), original.read(rows))
  if not same:
    raise errors.FolderError(
      f'{path}: config.json ties {copy.name} to {original.name}, but their '
      'values differ; set "tie_word_embeddings" to false there.'
    )
