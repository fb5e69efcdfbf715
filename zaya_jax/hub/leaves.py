# SPDX-License-Identifier: Apache-2.0
"""A model as arrays of which parts can be read, wherever it lies."""

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy as np

from zaya_jax import config as config_lib
from zaya_jax.checkpoint import meta
from zaya_jax.checkpoint.reading import finder, lazy
from zaya_jax.hub import folder as hub_folder
from zaya_jax.hub import names as hub_names
from zaya_jax.hub.quantized import tensor as stored


class Leaf(Protocol):
  """One of our arrays, of which parts can be read."""

  shape: tuple[int, ...]
  dtype: np.dtype

  def __getitem__(self, index: tuple[int, ...]) -> np.ndarray: ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
  """A model, of which no value is read yet.

  Attributes:
    path: the checkpoint or Hugging Face folder.
    config: of the model.
    leaves: 'params/PATH' and 'buffers/PATH' to arrays; of a run with --lora.*
      those of the adapter.
    about: the meta of a checkpoint; empty for a Hugging Face folder.
  """

  path: str
  config: config_lib.ModelConfig
  leaves: Mapping[str, Leaf]
  about: dict[str, Any]


def find(path: str) -> Source:
  """The model in a run directory, a checkpoint or a Hugging Face folder.

  Raises:
    CheckpointError: if there is no checkpoint, or a damaged one.
    FolderError: if a Hugging Face folder cannot be read.
  """
  if not hub_folder.is_folder(path):
    directory = finder.resolve(path)
    about = meta.read(directory)
    return Source(
      path=directory,
      config=meta.model_config(about),
      leaves=lazy.leaves(directory),
      about=about,
    )
  config = hub_folder.read_config(path)
  leaves = {
    f'{part}/{name}': FolderLeaf(leaf)
    for part, leaves in hub_folder.find_leaves(path, config).items()
    for name, leaf in leaves.items()
  }
  return Source(path=path, config=config, leaves=leaves, about={})


def parts(leaf: Leaf, name: str) -> Iterator[tuple[Any, np.ndarray]]:
  """Yields (index, values) that fill an array: one layer at a time.

  Args:
    leaf: the array.
    name: its path, 'params/layers/...' if its first axis counts layers.
  """
  stacked = name.partition('/')[2].startswith('layers/')
  for index in [(n,) for n in range(leaf.shape[0])] if stacked else [()]:
    yield index, leaf[index]


def read(found: Source) -> dict[str, Any]:
  """A model whole, float32: {'params': tree, 'buffers': tree} of arrays."""
  trees: dict[str, dict[str, np.ndarray]] = {'params': {}, 'buffers': {}}
  for name, leaf in found.leaves.items():
    part, _, path = name.partition('/')
    if part in trees:
      whole = trees[part][path] = np.empty(leaf.shape, np.float32)
      for index, values in parts(leaf, name):
        whole[index] = values
  return {part: hub_names.nest(tree) for part, tree in trees.items()}


class FolderLeaf:
  """A leaf of a Hugging Face folder by parts, whatever its tensors are."""

  def __init__(self, leaf: hub_folder.Leaf):
    self.shape, self.dtype = leaf.shape, leaf.dtype
    self._read = leaf.row.axes.read
    self._tensors = dict(leaf.sources)
    self._layer = functools.lru_cache(maxsize=1)(self._read_layer)
    kinds = [
      (tensor.values.dtype, tensor.values.shape, tensor.scale.shape)
      if isinstance(tensor, stored.Tensor) and tensor.pack
      else None
      for tensor in self._tensors.values()
    ]
    # Whether all of it has few bits, in one format that decoding knows.
    self.is_packed = None not in kinds and len(set(kinds)) == 1

  def __getitem__(self, index: tuple[int, ...]) -> np.ndarray:
    if index in self._tensors:
      tensor = self._tensors[index]
      if tensor is None:
        return np.zeros(self.shape[len(index) :], self.dtype)
      return self._read(tensor.read())
    return self._layer(index[0])[index[1:]]

  def read_packed(self, index: tuple[int, ...]) -> stored.Pair:
    """Numbers and scales of a part, [..., out, in], where `is_packed`."""
    if index in self._tensors:
      return self._tensors[index].read_packed()
    pairs = [self.read_packed((*index, e)) for e in range(self.shape[1])]
    values, scale = (np.stack(arrays) for arrays in zip(*pairs, strict=True))
    return values, scale

  def _read_layer(self, n: int) -> np.ndarray:
    if (n,) in self._tensors:
      return self[(n,)]
    return np.stack([self[(n, e)] for e in range(self.shape[1])])
