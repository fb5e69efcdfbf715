# SPDX-License-Identifier: Apache-2.0
"""Arrays of a checkpoint that are read part by part, as they are asked for."""

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorstore

from zaya_jax.checkpoint import errors, folders, quiet, seal

# What a tree holds in place of an array.
_EMPTY = ('None', 'Dict', 'List', 'Tuple', 'NamedTuple')


class Leaf:
  """An array on disk.

  Attributes:
    shape: of the whole.
    dtype: as stored.
  """

  def __init__(self, directory: str, store: Any):
    self._directory = directory
    self._store = store
    self._rows = slice(0)  # What was read last.
    self._block: np.ndarray | None = None
    self.shape = tuple(store.shape)
    self.dtype = np.dtype(store.dtype.numpy_dtype)

  def __getitem__(self, index: tuple[int, ...]) -> np.ndarray:
    """The part at `index` of the first axes; () is the whole.

    Whole chunks are read, and the last one is kept: parts in order are read
    once.

    Raises:
      CheckpointError: if a file is damaged.
    """
    if not index:
      return self._read(...)
    if index[0] not in range(self._rows.start or 0, self._rows.stop):
      first = index[0] // self.rows * self.rows
      self._block = None  # Not both at once.
      self._rows = slice(first, min(first + self.rows, self.shape[0]))
      self._block = self._read(self._rows)
    return self._block[(index[0] - self._rows.start, *index[1:])]

  @property
  def rows(self) -> int:
    """How many rows of the first axis are stored, and so read, at once."""
    chunk = self._store.chunk_layout.read_chunk.shape
    return max(1, chunk[0]) if chunk else 1

  def blocks(
    self, rows: int = 0
  ) -> Iterator[tuple[tuple[int, ...], np.ndarray]]:
    """Yields (index of the first element, values) of some rows at a time.

    Args:
      rows: how many; 0: as they are stored.

    Raises:
      CheckpointError: if a file is damaged.
    """
    if not self.shape:
      yield (), self[()]
      return
    rows = rows or self.rows
    for first in range(0, self.shape[0], rows):
      block = self._read(slice(first, min(first + rows, self.shape[0])))
      yield (first, *(0,) * (len(self.shape) - 1)), block

  def _read(self, place: Any) -> np.ndarray:
    try:
      return self._store[place].read().result()
    except errors.FAILURES as error:
      raise errors.damaged(self._directory, error) from error


def leaves(directory: str) -> dict[str, Leaf]:
  """The arrays of a complete checkpoint by path, 'params/embed'; none is read.

  Raises:
    CheckpointError: if it is damaged.
  """
  quiet.silence()
  state = os.path.join(directory, folders.STATE)
  try:
    about = seal.load_json(directory, f'{folders.STATE}/_METADATA')
    driver = 'zarr3' if about.get('use_zarr3') else 'zarr'
    names = [
      '/'.join(str(part['key']) for part in leaf['key_metadata'])
      for leaf in about['tree_metadata'].values()
      if leaf['value_metadata']['value_type'] not in _EMPTY
    ]
    stores = {
      name: tensorstore.open(
        {
          'driver': driver,
          'kvstore': {
            'driver': 'ocdbt',
            'base': {'driver': 'file', 'path': state},
            'path': name.replace('/', '.') + '/',
          },
        },
        open=True,
        read=True,
      )
      for name in names
    }
    return {name: Leaf(directory, s.result()) for name, s in stores.items()}
  except errors.FAILURES as error:
    raise errors.damaged(directory, error) from error
