# SPDX-License-Identifier: Apache-2.0
"""Reads a native Hugging Face ZAYA folder: config.json and safetensors.

Native means the layout of `transformers.ZayaForCausalLM`. Neither torch nor
transformers is needed.
"""

import contextlib
import json
import os
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes  # noqa: F401  Makes bfloat16 a NumPy dtype, for safetensors.
import numpy as np
import safetensors

from zaya_jax import config as config_lib
from zaya_jax.interop import errors, hf_config, hf_table
from zaya_jax.model import zaya


def is_folder(path: str) -> bool:
  """Whether `path` holds a Hugging Face model, of whatever kind."""
  return os.path.isfile(os.path.join(path, 'config.json')) and (
    os.path.isfile(os.path.join(path, 'model.safetensors'))
    or os.path.isfile(os.path.join(path, 'model.safetensors.index.json'))
  )


def read_config(path: str) -> config_lib.ModelConfig:
  """Translates `config.json` of the folder `path`.

  Raises:
    FolderError: if it is missing, or says what our model cannot represent.
  """
  file = os.path.join(path, 'config.json')
  given = _read_json(file)
  try:
    return hf_config.translate(file, given)
  except config_lib.UsageError as error:  # A rule of ours names our setting.
    raise errors.FolderError(f'{file}: {error}') from error


def read_stop_ids(path: str) -> tuple[int, ...]:
  """Tokens that end a text, by the folder's generation settings or model.

  Raises:
    FolderError: if `config.json` cannot be read.
  """
  stop = _read_json(os.path.join(path, 'config.json')).get('eos_token_id', 106)
  generation = os.path.join(path, 'generation_config.json')
  if os.path.exists(generation):
    stop = _read_json(generation).get('eos_token_id', stop)
  if stop is None:
    return ()
  return tuple(stop) if isinstance(stop, list) else (stop,)


def read_params(
  path: str, config: config_lib.ModelConfig
) -> tuple[dict[str, Any], dict[str, Any]]:
  """Reads every tensor of the folder `path`.

  Args:
    path: folder with `model.safetensors`, or its shards and their index.
    config: the model, from `read_config`.

  Returns:
    params, buffers: nested dicts of float32 arrays in the structure of
      `zaya.init`, on the default device.

  Raises:
    FolderError: if a tensor is missing, unexpected or of another shape.
  """
  leaves = jax.eval_shape(lambda key: zaya.init(config, key), jax.random.key(0))
  with contextlib.ExitStack() as stack:
    tensors = _Tensors(path, stack)
    params = dict(
      _read_rows(tensors, hf_table.PARAMS, hf_table.flatten(leaves[0]))
    )
    buffers = dict(
      _read_rows(tensors, hf_table.BUFFERS, hf_table.flatten(leaves[1]))
    )
    if config.tie_embeddings:
      tensors.check_copy('lm_head.weight', 'model.embed_tokens.weight')
    tensors.check_all_used()
  return hf_table.nest(params), hf_table.nest(buffers)


class _Tensors:
  """The tensors of a folder by name, and which of them were used."""

  def __init__(self, path: str, stack: contextlib.ExitStack):
    self._path = path
    self._file_of = {}
    self._used = set()
    for file in _weight_files(path):
      handle = stack.enter_context(_open(os.path.join(path, file)))
      self._file_of |= dict.fromkeys(handle.keys(), handle)

  def read(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """The tensor `name` as stored; it must have this shape."""
    if name not in self._file_of:
      raise errors.FolderError(
        f'{self._path} has no tensor {name}, which its config.json asks for; '
        'the folder is incomplete or of another model.'
      )
    self._used.add(name)
    found = tuple(self._file_of[name].get_slice(name).get_shape())
    if found != shape:
      raise errors.FolderError(
        f'{self._path}: tensor {name} has shape {found}, but its config.json '
        f'asks for {shape}.'
      )
    return self._file_of[name].get_tensor(name)

  def check_copy(self, name: str, original: str) -> None:
    """Accepts a stored copy of a tied tensor if it is one."""
    if name not in self._file_of:
      return
    self._used.add(name)
    copy, kept = (self._file_of[n].get_tensor(n) for n in (name, original))
    if not np.array_equal(copy, kept):
      raise errors.FolderError(
        f'{self._path}: config.json ties {name} to {original}, but their '
        'values differ; set "tie_word_embeddings" to false there.'
      )

  def check_all_used(self) -> None:
    """Refuses tensors that no leaf of the model took."""
    unused = sorted(self._file_of.keys() - self._used)
    if unused:
      raise errors.FolderError(
        f'{self._path} has {len(unused)} tensors that its config.json does not '
        f'explain, such as {unused[0]}; they would be lost.'
      )


def _read_rows(
  tensors: _Tensors,
  rows: tuple[hf_table.Row, ...],
  leaves: dict[str, jax.ShapeDtypeStruct],
) -> Iterator[tuple[str, jax.Array]]:
  """Yields (path, float32 array) for the rows that the model has."""
  for row in rows:
    if row.path not in leaves:
      continue
    # Zeros: what the model's unused first EDA vector holds.
    leaf = np.zeros(leaves[row.path].shape, np.float32)
    for name, index in row.tensors('native', leaf.shape):
      tensor = tensors.read(name, row.shape_of(index, leaf.shape))
      leaf[index] = row.axes.read(tensor)
    yield row.path, jnp.asarray(leaf)


def _weight_files(path: str) -> list[str]:
  """Names of the files that hold the tensors."""
  index = os.path.join(path, 'model.safetensors.index.json')
  if os.path.exists(index):
    return sorted(set(_read_json(index)['weight_map'].values()))
  return ['model.safetensors']


def _open(file: str) -> Any:
  """Opens one safetensors file for NumPy."""
  try:
    return safetensors.safe_open(file, framework='numpy')
  except (OSError, safetensors.SafetensorError) as error:
    raise errors.FolderError(f'{file} cannot be read: {error}.') from error


def _read_json(file: str) -> dict[str, Any]:
  """Reads one JSON object."""
  try:
    with open(file, encoding='utf-8') as f:
      return json.load(f)
  except (OSError, json.JSONDecodeError, UnicodeDecodeError) as error:
    raise errors.FolderError(f'{file} cannot be read: {error}.') from error
