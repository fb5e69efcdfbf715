# SPDX-License-Identifier: Apache-2.0
"""Beginnings of prompts that were read, for prompts that begin alike.

A prompt is read in pieces, and what a piece leaves in the cache depends on its
tokens and on the pieces before it alone. So it is kept by their hash: keys and
values of its tokens, and what CCA needs behind its last token, the samples
before the convolutions and the delayed value. A prompt that has the same first
pieces gets them, bit for bit, and reads the rest in the same programs as it
would without.
"""

import bisect
import collections
import hashlib
from collections.abc import Sequence

import numpy as np

from zaya_jax.inference.decoding import cache as cache_lib
from zaya_jax.inference.decoding import decoder as decoder_lib
from zaya_jax.inference.decoding import network


class Table:
  """Which rows of a pool hold which piece; what was used longest ago goes.

  Args:
    rows: of the pool.
  """

  def __init__(self, rows: int):
    self._free = list(range(rows))
    # From the one that goes next; a piece goes before those in front of it.
    self._rows: collections.OrderedDict[bytes, tuple[int, ...]] = (
      collections.OrderedDict()
    )

  def find(self, chain: Sequence[bytes]) -> list[tuple[int, ...]]:
    """The rows of the first pieces of a prompt, as many as are there.

    Args:
      chain: the keys of all its pieces.
    """
    found = []
    for key in chain:
      if key not in self._rows:
        break
      found.append(self._rows[key])
    self._touch(chain[: len(found)])
    return found

  def add(
    self, chain: Sequence[bytes], count: int, is_end: bool
  ) -> tuple[int, ...] | None:
    """Rows for a piece.

    Args:
      chain: its key, behind those of the pieces before it.
      count: how many rows.
      is_end: whether only the same prompt can use it: it is the next to go
        until one does.

    Returns:
      None if it is there.
    """
    *before, key = chain
    if key in self._rows:
      return None
    self._touch(before)
    while len(self._free) < count:
      self._free.extend(self._rows.popitem(last=False)[1])
    rows, self._free = tuple(self._free[:count]), self._free[count:]
    self._rows[key] = rows
    if is_end:
      self._rows.move_to_end(key, last=False)
    else:
      self._touch(chain)
    return rows

  def _touch(self, chain: Sequence[bytes]) -> None:
    for key in reversed(chain):
      if key in self._rows:
        self._rows.move_to_end(key)


class Pool:
  """The pieces on the device.

  Args:
    decoder: the network.
    tokens: it has room for, a multiple of `unit`, a whole prompt at least.
    unit: tokens of a row; divides every piece.

  Attributes:
    cache: rows of `unit` tokens.
  """

  def __init__(self, decoder: decoder_lib.Decoder, tokens: int, unit: int):
    self._unit = unit
    rows = tokens // unit
    self.cache: cache_lib.Cache = network.init_cache(
      decoder.about.config, decoder.weights, rows, unit
    )
    self._table = Table(rows)
    # Of each slot: its prompt, where pieces end, and their keys.
    self._reading: dict[int, tuple[np.ndarray, list[int], list[bytes]]] = {}

  def find(
    self, slot: int, ids: np.ndarray, ends: list[int]
  ) -> list[tuple[int, np.ndarray]]:
    """The first pieces of a prompt, as many as are there.

    Args:
      slot: that is about to read it.
      ids: the prompt, [L] int32.
      ends: the token behind each of its pieces, ascending.

    Returns:
      Of each: the token behind it; its rows, [R] int32.
    """
    keys = chain(ids, ends)
    self._reading[slot] = ids, ends, keys
    rows = map(self._array, self._table.find(keys))
    return list(zip(ends, rows, strict=False))

  def add(
    self, slot: int, ids: np.ndarray, begin: int, size: int, is_end: bool
  ) -> np.ndarray | None:
    """Rows for a piece that was read.

    Args:
      slot: that has read it.
      ids: its prompt; that of `find`, or it is not kept.
      begin: the first token of the piece.
      size: tokens of the piece, with padding.
      is_end: as of `Table.add`.

    Returns:
      [R] int32; None if it is there, or cannot be kept.
    """
    known, ends, keys = self._reading.get(slot, (None, [], []))
    if known is not ids:
      return None
    before = bisect.bisect_right(ends, begin)
    rows = self._table.add(keys[: before + 1], size // self._unit, is_end)
    return None if rows is None else self._array(rows)

  def some(self, size: int) -> np.ndarray:
    """[R] int32: some rows for a piece of `size` tokens, to compile with."""
    return self._array(range(size // self._unit))

  def _array(self, rows: Sequence[int]) -> np.ndarray:
    return np.array(rows, np.int32)


def chain(ids: np.ndarray, ends: Sequence[int]) -> list[bytes]:
  """A key for each piece of a prompt and what is before it.

  Args:
    ids: the prompt, [L] int32.
    ends: the token behind each piece, ascending.
  """
  keys, begin, key = [], 0, bytes(hashlib.sha256().digest_size)
  for end in ends:
    piece = np.asarray(ids[begin:end], np.int32).tobytes()
    # Nobody can find another beginning with this key, to be told of its text.
    key = hashlib.sha256(key + piece).digest()
    keys.append(key)
    begin = end
  return keys
