# SPDX-License-Identifier: Apache-2.0
"""Permutations of [0, size) without a table, many places at a time.

Of the permutation that a key chooses, any place is computed alone: nothing in
memory grows with the data. It is a Feistel network of two numbers whose ranges
multiply to little more than `size`; what lands behind the end goes round again
(cycle walking).

Grain's `index_shuffle` is not used: it works out its keys at each call, 4 us,
and for sizes of 4**k + 1 (65,537, 262,145, …) it is no permutation.
"""

import functools
import hashlib

import numpy as np

ROUNDS = 8

_CHUNK = 2**15  # Places whose numbers stay in the cache of a core.


@functools.lru_cache(4096)
def key(*of: int) -> np.ndarray:
  """The key of one permutation, uint64 [ROUNDS], for what these numbers say."""
  text = ','.join(map(str, of)).encode()
  digest = hashlib.blake2b(text, digest_size=8 * ROUNDS).digest()
  result = np.frombuffer(digest, '<u8').astype(np.uint64)
  result.setflags(write=False)
  return result


def permute(
  places: np.ndarray, sizes: np.ndarray | int, keys: np.ndarray
) -> np.ndarray:
  """What stands at these places of permutations.

  Args:
    places: int64 [n], each in [0, its size).
    sizes: of the permutation of each place, int64 [n] or one for all; below
      2**53.
    keys: uint64 [ROUNDS, n] or [ROUNDS, 1].

  Returns:
    int64 [n], each in [0, its size).
  """
  sizes = np.broadcast_to(np.asarray(sizes, np.uint64), places.shape)
  keys = np.broadcast_to(keys, (len(keys), *places.shape))
  result = np.empty(places.shape, np.int64)
  for start in range(0, len(places), _CHUNK):
    part = slice(start, start + _CHUNK)
    result[part] = _permute(
      places[part].astype(np.uint64), sizes[part], keys[:, part]
    )
  return result


def _permute(x: np.ndarray, sizes: np.ndarray, keys: np.ndarray) -> np.ndarray:
  # Any `rows` would do: IEEE 754 says what a square root is, on all machines.
  rows = np.ceil(np.sqrt(sizes)).astype(np.uint64)
  columns = (sizes + rows - np.uint64(1)) // rows
  x = _network(x, rows, columns, keys)
  out = np.flatnonzero(x >= sizes)
  while len(out):
    x[out] = _network(x[out], rows[out], columns[out], keys[:, out])
    out = out[x[out] >= sizes[out]]
  return x.astype(np.int64)


def _network(x, rows, columns, keys) -> np.ndarray:
  """A permutation of [0, rows * columns)."""
  left = x // columns
  right = x - left * columns
  for i in range(0, len(keys), 2):
    left = _add(left, right, keys[i], rows)
    right = _add(right, left, keys[i + 1], columns)
  return left * columns + right


def _add(x, other, key_, size) -> np.ndarray:
  """`x` plus a number that `other` and the key say, modulo `size` < 2**32."""
  mixed = other + key_
  # The finalizer of SplitMix64.
  mixed ^= mixed >> np.uint64(30)
  mixed *= np.uint64(0xBF58476D1CE4E5B9)
  mixed ^= mixed >> np.uint64(27)
  mixed *= np.uint64(0x94D049BB133111EB)
  mixed >>= np.uint64(32)
  mixed *= size
  mixed >>= np.uint64(32)
  mixed += x
  mixed -= np.where(mixed >= size, size, np.uint64(0))
  return mixed
