# SPDX-License-Identifier: Apache-2.0
"""Digests against Python's integers, and what changes them."""

import numpy as np
import pytest

from pipelines import pack
from zaya_jax.data.ledger import digest

BOS, PAD = 1, 0
M = 2**32


def windows(rows=6, length=16, seed=0):
  """Documents, an uncounted part, a document without BOS, a short last row."""
  rng = np.random.default_rng(seed)
  found = rng.integers(2, 300, (rows, length + 1)).astype(np.int32)
  found[:, [3, 9]] = BOS
  found[1, 5:8] |= pack.UNCOUNTED
  found[2, 6] |= pack.EXCEPTION
  found[3, 9] |= pack.EXCEPTION
  found[-1, 11:] = pack.NO_TOKEN
  found[4, 4:6] = pack.NO_TOKEN
  return found


def inputs(rows):
  return pack.model_inputs(rows, bos_id=BOS, pad_id=PAD)


def of_inputs(batch):
  columns = np.arange(batch['tokens'].shape[1], dtype=np.uint32)
  *sums, numbers = digest.of_batch(batch, columns)
  return np.stack(digest.finish(*sums), axis=1), numbers


def spread(x):
  x = (x ^ x >> 16) * 0x85EBCA6B % M
  x = (x ^ x >> 13) * 0xC2B2AE35 % M
  return x ^ x >> 16


def naive(batch):
  """The hashes of each row, by integers that never wrap by themselves."""
  keys = (
    (0x428A2F98, 0x71374491, 0x3956C25B, 0xAB1C5ED5, 0x59F111F1),
    (0xB5C0FBCF, 0xE9B5DBA5, 0x923F82A5, 0x9BDC06A7, 0xC19BF175),
  )
  found = []
  for row in range(len(batch['tokens'])):
    sums = [0, 0]
    for column in range(batch['tokens'].shape[1]):
      at = {name: a[row, column] for name, a in batch.items()}
      there = int(at['segment_ids'] > 0)
      begins = there * int(at['positions'] == 0)
      word = int(at['tokens']) + there * 2**29 + begins * 2**30
      word += int(at['weights'] > 0) * 2**31
      for i, (key, one, two, three, place) in enumerate(keys):
        x = (word ^ key) * one % M
        x = ((x ^ x >> 15) + int(at['targets'])) * two % M
        x = ((x ^ x >> 13) + spread((column + place) % M)) * three % M
        sums[i] += x ^ x >> 16
    one, two = sums[0] % M, sums[1] % M
    first = spread(one ^ spread((two + 0x428A2F98) % M))
    found.append([first, spread((two + first * 0xE9B5DBA5) % M)])
  return np.array(found, np.uint32)


def test_digests_are_those_of_the_definition():
  batch = inputs(windows())
  rows, numbers = of_inputs(batch)
  np.testing.assert_array_equal(rows, naive(batch))
  assert list(numbers) == [
    (batch['segment_ids'] > 0).sum(),
    batch['weights'].sum(),
  ]


def test_windows_need_not_become_inputs():
  read = windows()
  rows, numbers = digest.of_windows(read, bos_id=BOS, pad_id=PAD)
  expected, whole = of_inputs(inputs(read))
  np.testing.assert_array_equal(rows, expected)
  np.testing.assert_array_equal(numbers.sum(axis=0), whole)
  assert numbers[-1].tolist() == [11, 10]


def changed(kind):
  batch = inputs(windows())
  batch = {name: array.copy() for name, array in batch.items()}
  tokens, rng = batch['tokens'], np.random.default_rng(1)
  if kind == 'a token':
    tokens[0, 5] += 1
  elif kind == 'a target':
    batch['targets'][0, -1] += 1
  elif kind == 'what counts':
    batch['weights'][0, 2] = 0
  elif kind == 'where a document begins':
    batch['positions'][0, 4] = 0
  elif kind == 'two tokens of a row are swapped':
    tokens[0, [4, 7]] = tokens[0, [7, 4]]
  elif kind == 'two rows swap a column':
    for array in batch.values():
      array[[0, 1], 12] = array[[1, 0], 12]
  elif kind == 'a token is none':
    batch['segment_ids'][0, 2] = 0
  elif kind == 'a row is repeated':
    for array in batch.values():
      array[1] = array[0]
  else:
    order = rng.permutation(len(tokens))
    batch = {name: array[order] for name, array in batch.items()}
  return batch


CHANGES = (
  'a token',
  'a target',
  'what counts',
  'where a document begins',
  'two tokens of a row are swapped',
  'two rows swap a column',
  'a token is none',
  'a row is repeated',
)


def whole(batch):
  rows, _ = of_inputs(batch)
  return digest.to_hex(*map(int, rows.sum(axis=0, dtype=np.uint64)))


@pytest.mark.parametrize('kind', CHANGES)
def test_whatever_the_model_would_notice_changes_both_sums(kind):
  one, two = digest.from_hex(whole(inputs(windows())))
  other = digest.from_hex(whole(changed(kind)))
  assert one != other[0]
  assert two != other[1]


def test_rows_may_come_in_any_order():
  assert whole(changed('order')) == whole(inputs(windows()))


def test_digests_add_up():
  parts = [whole(inputs(part)) for part in np.split(windows(), 3)]
  assert digest.add(parts) == whole(inputs(windows()))
  assert digest.add([]) == '0' * 16
  assert digest.from_hex(digest.to_hex(3, M + 4)) == (3, 4)


def test_bits_of_the_sums_are_even():
  # 4,096 rows that differ in one token by one: no bit prefers a side.
  read = np.tile(windows()[:1], (4096, 1))
  read[:, 4] = 2 + np.arange(4096)
  rows, _ = digest.of_windows(read, bos_id=BOS, pad_id=PAD)
  bits = np.unpackbits(rows.view(np.uint8), axis=1).mean(axis=0)
  assert np.abs(bits - 0.5).max() < 5 * 0.5 / np.sqrt(4096)
  assert len(np.unique(rows[:, 0])) > 4090
