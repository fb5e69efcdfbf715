# SPDX-License-Identifier: Apache-2.0
"""Arrays of a checkpoint that are read part by part, as they are asked for."""

import json
import os
from typing import Any

import numpy as np
import tensorstore

from zaya_jax.checkpoint import arrays, errors, layout, reader


class Leaf:
  """An array on disk.

  Attributes:
    shape: of the whole.
    dtype: as stored.
  """

  def __init__(self, directory: str, store: Any):
    self._directory = directory
    self._store = store
    self._rows, self._block = slice(0), None  # What was read last.
    self.shape = tuple(store.shape)
    self.dtype = np.dtype(store.dtype.numpy_dtype)

  def __getitem__(self, index: tuple[int, ...]) -> np.ndarray:
    """The part at `index` of the first axes; () is the whole.

    Whole chunks are read, and the last one is kept: parts in order are read
    once.

    Raises:
      CheckpointError: if a file is damaged.
    """
    try:
      if not index:
        return self._store.read().result()
      if index[0] not in range(self._rows.start or 0, self._rows.stop):
        size = max(1, self._store.chunk_layout.read_chunk.shape[0])
        first = index[0] // size * size
        self._block = None  # Not both at once.
        self._rows = slice(first, min(first + size, self.shape[0]))
        self._block = self._store[self._rows].read().result()
    except reader.FAILURES as error:
      raise errors.CheckpointError(
        f'Checkpoint {self._directory} is damaged ({errors.cause(error)}); '
        'name an older one.'
      ) from error
    return self._block[(index[0] - self._rows.start, *index[1:])]


def leaves(directory: str) -> dict[str, Leaf]:
  """The arrays of a complete checkpoint by path, 'params/embed'; none is read.

  Raises:
    CheckpointError: if it is damaged.
  """
  state = os.path.join(directory, layout.STATE)
  names = arrays.named(reader.stored(directory))
  try:
    with open(os.path.join(state, '_METADATA'), encoding='utf-8') as f:
      driver = 'zarr3' if json.load(f).get('use_zarr3') else 'zarr'
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
  except reader.FAILURES as error:
    raise errors.CheckpointError(
      f'Checkpoint {directory} is damaged ({errors.cause(error)}); name an '
      'older one.'
    ) from error
