# SPDX-License-Identifier: Apache-2.0
"""Reads ahead with threads: a store that answers late is not waited for."""

import contextlib
from collections.abc import Callable, Generator

import grain
import numpy as np

# Reads at the same time: at 100 ms each, 160 a second.
THREADS = 16
_AHEAD = 2 * THREADS


class _Pieces:
  """What Grain takes for a source."""

  def __init__(self, read: Callable[[int], np.ndarray], count: int):
    self._read, self._count = read, count

  def __len__(self) -> int:
    return self._count

  def __getitem__(self, index: int) -> np.ndarray:
    return self._read(index)


def read(
  piece: Callable[[int], np.ndarray], count: int
) -> Generator[np.ndarray]:
  """Gives pieces 0 to `count` - 1 in order, reading some of them at once.

  Args:
    piece: gives a piece; threads call it.
    count: of pieces.
  """
  if not count:
    return
  dataset = grain.MapDataset.source(_Pieces(piece, count)).to_iter_dataset(
    grain.ReadOptions(num_threads=THREADS, prefetch_buffer_size=_AHEAD)
  )
  with contextlib.closing(iter(dataset)) as pieces:
    yield from pieces


def pieces(rows: range) -> list[range]:
  """Rows of a batch in parts, one for a thread if there are enough."""
  size = max(1, -(-len(rows) // THREADS))
  return [rows[i : i + size] for i in range(0, len(rows), size)]
