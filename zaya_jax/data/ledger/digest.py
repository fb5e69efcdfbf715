# SPDX-License-Identifier: Apache-2.0
"""Digests of rows of tokens: the same on devices and in NumPy.

A row is all that the model gets of it: at each position the token, the token
that it predicts, whether that counts, whether a document begins there. Each
position gives two hashes, the sums over a row are mixed, and the sums of rows
are added up. So a digest depends neither on how rows are divided nor on which
came first, but tokens that move within a row, or to another row, change it. It
finds every mistake of a program but one in 2**64; who makes up rows to fit a
digest can.

All arithmetic is that of uint32, which wraps.
"""

from typing import Any

import numpy as np

from pipelines import pack

Array = Any  # Of NumPy or of jax.

# Of each of the two hashes: odd numbers without a pattern, of SHA-2's tables.
_KEYS = (0x428A2F98, 0xB5C0FBCF)
_FIRST = (0x71374491, 0xE9B5DBA5)
_SECOND = (0x3956C25B, 0x923F82A5)
_THIRD = (0xAB1C5ED5, 0x9BDC06A7)
_PLACES = (0x59F111F1, 0xC19BF175)

# Beside a token, which is below `pack.EXCEPTION`.
_THERE, _BEGINS, _COUNTS = 29, 30, 31


def of_batch(
  batch: dict[str, Array], columns: Array
) -> tuple[Array, Array, Array]:
  """What `finish` takes, of a part of a batch.

  Args:
    batch: arrays [B, L] of `pack.model_inputs`.
    columns: [L] which column of the whole rows each of these is.

  Returns:
    The sums of both hashes over the columns, uint32 [B] each; the number of
    tokens and of those that are predicted and count, uint32 [2].
  """
  there = batch['segment_ids'] > 0
  counts = batch['weights'] != 0  # NaN, of a drill, is not 0.
  begins = there & (batch['positions'] == 0)
  xp = np if isinstance(there, np.ndarray) else _jnp()
  words = (
    batch['tokens'].astype(np.uint32)
    | there.astype(np.uint32) << _THERE
    | begins.astype(np.uint32) << _BEGINS
    | counts.astype(np.uint32) << _COUNTS
  )
  targets = batch['targets'].astype(np.uint32)
  sums = _sums(xp, words, targets, columns)
  numbers = [xp.sum(flags, dtype=np.uint32) for flags in (there, counts)]
  return *sums, xp.stack(numbers)


def finish(sums_B: Array, others_B: Array) -> tuple[Array, Array]:
  """The hashes of whole rows, uint32 [B] each, whose sums are the digest."""
  first = _avalanche(sums_B ^ _avalanche(others_B + np.uint32(_KEYS[0])))
  return first, _avalanche(others_B + first * np.uint32(_FIRST[1]))


def of_windows(
  windows: np.ndarray, *, bos_id: int, pad_id: int
) -> tuple[np.ndarray, np.ndarray]:
  """Digests of windows as they are read, without the inputs of a model.

  Args:
    windows: int32 [B, L + 1], as `pack.model_inputs` takes them.
    bos_id: begins a document.
    pad_id: stands where there is no token.

  Returns:
    The hashes of each row, uint32 [B, 2]; how many tokens it has and how many
    of its targets count, int64 [B, 2].
  """
  there = windows >= 0
  ids = np.where(there, windows & (pack.EXCEPTION - 1), np.int32(pad_id))
  ids = ids.view(np.uint32)
  here = there[:, :-1]
  counts = (there & (windows & pack.UNCOUNTED == 0))[:, 1:]
  begins = here & (
    (ids[:, :-1] == bos_id) ^ (windows[:, :-1] & pack.EXCEPTION != 0)
  )
  begins[:, 0] = here[:, 0]
  words = ids[:, :-1].copy()
  for flags, place in ((here, _THERE), (begins, _BEGINS), (counts, _COUNTS)):
    words |= flags.astype(np.uint32) << np.uint32(place)
  columns = np.arange(words.shape[1], dtype=np.uint32)
  sums = _sums(np, words, ids[:, 1:], columns)
  numbers = [np.count_nonzero(flags, axis=1) for flags in (here, counts)]
  return np.stack(finish(*sums), axis=1), np.stack(numbers, axis=1)


def to_hex(first: int, second: int) -> str:
  """Both sums as 16 digits."""
  return f'{first % 2**32:08x}{second % 2**32:08x}'


def from_hex(text: str) -> tuple[int, int]:
  """Both sums of 16 digits."""
  return int(text[:8], 16), int(text[8:], 16)


def add(digests: list[str]) -> str:
  """The digest of all rows of some digests together."""
  pairs = [from_hex(text) for text in digests]
  return to_hex(sum(a for a, _ in pairs), sum(b for _, b in pairs))


def _sums(xp, words_BL, targets_BL, columns_L):
  """Both hashes of each position, summed over the row."""
  found = []
  for i in range(2):
    # Positions differ in few bits: they are spread before they meet a token.
    places_L = _avalanche(columns_L.astype(np.uint32) + np.uint32(_PLACES[i]))
    x = (words_BL ^ np.uint32(_KEYS[i])) * np.uint32(_FIRST[i])
    x = ((x ^ (x >> 15)) + targets_BL) * np.uint32(_SECOND[i])
    x = ((x ^ (x >> 13)) + places_L[None]) * np.uint32(_THIRD[i])
    found.append(xp.sum(x ^ (x >> 16), axis=1, dtype=np.uint32))
  return found


def _avalanche(x):
  """Every bit of uint32 changes half of the others: MurmurHash3's last step."""
  x = (x ^ (x >> 16)) * np.uint32(0x85EBCA6B)
  x = (x ^ (x >> 13)) * np.uint32(0xC2B2AE35)
  return x ^ (x >> 16)


def _jnp():
  """jax, where a batch is its own: who only checks does not wait for it."""
  import jax.numpy as jnp

  return jnp
