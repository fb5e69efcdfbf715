# SPDX-License-Identifier: Apache-2.0
"""How random the order of training is, beside other shuffles.

    python -m benchmarks.data_order

Windows have positions, from 0 to 1. Of a random order, neighbours in time are
not correlated, and the mean position in a batch of B windows has the variance
1/12/B, but for what B takes from a small source: `variance_ratio` is what was
found over that, `lag_1` the correlation. Windows have 4,096 tokens. The peers
are Grain's shuffle (`index_shuffle` with 4 rounds), the same with 8, and the
permutation of NumPy, which has all of it in memory. `lost` counts windows that
an epoch never gives; the second size is 4**8 + 1.
"""

import argparse
import json
import pathlib
import time
from collections.abc import Callable
from fractions import Fraction

import grain
import numpy as np

from benchmarks import record
from pipelines import order

_LENGTH, _RECORD = 4_096, 32_768
# Windows of a source, and batch sizes.
_SIZES = {
  '1e6 windows': (10**6, (32, 128, 1_024)),
  '12T tokens': (12 * 10**12 // _LENGTH, (32, 1_024, 4_096)),
}
_LOST = (10**6, 65_537)

Shuffle = Callable[[np.ndarray], np.ndarray]  # Places -> windows.


def ours(count: int) -> Shuffle:
  """Windows by `pipelines.order`."""
  extent = order.Extent(count * _LENGTH, _RECORD)
  stretch = order.Stretch(None, _LENGTH, (Fraction(1),))
  rows = order.Order([extent], [stretch], 0)

  def at(places):
    found = np.array(rows.places(places))
    return (found[:, 2] * _RECORD + found[:, 3]) // _LENGTH

  return at


def grains(count: int, rounds: int) -> Shuffle:
  """Windows by Grain."""

  def at(places):
    shuffle = grain.experimental.index_shuffle
    return np.array(
      [
        shuffle(int(i), max_index=count - 1, seed=0, rounds=rounds)
        for i in places
      ]
    )

  return at


def numpys(count: int) -> Shuffle | None:
  """Windows by a permutation in memory."""
  if count > 10**8:
    return None
  return np.random.default_rng(0).permutation(count).__getitem__


def measure(shuffle: Shuffle, count: int, batch: int, batches: int) -> dict:
  """Statistics of batches at random places of the first epoch."""
  starts = np.random.default_rng(1).integers(0, count // batch, batches)
  means, products, seconds = [], [], 0.0
  for start in starts:
    places = np.arange(start * batch, (start + 1) * batch)
    began = time.process_time()
    windows = shuffle(places)
    seconds += time.process_time() - began
    x = (windows + 0.5) / count - 0.5
    means.append(x.mean())
    products.append((x[:-1] * x[1:]).mean())
  expected = (1 - batch / count) / 12 / batch
  return {
    'batch': batch,
    'batches': batches,
    'lag_1': float(np.mean(products) * 12),
    'variance_ratio': float(np.mean(np.square(means)) / expected),
    'us_per_window': seconds / batch / batches * 1e6,
  }


def main() -> None:
  """Prints and keeps the statistics."""
  parser = argparse.ArgumentParser()
  parser.add_argument('--batches', type=int, default=1_000)
  parser.add_argument(
    '--output', type=pathlib.Path, default=record.RESULTS / 'data_order.json'
  )
  args = parser.parse_args()
  facts = record.circumstances('benchmarks.data_order', ('grain', 'numpy'))
  shuffles = {
    'ours': ours,
    'grain, 4 rounds': lambda count: grains(count, 4),
    'grain, 8 rounds': lambda count: grains(count, 8),
    'numpy': numpys,
  }
  found = {}
  for size, (count, batch_sizes) in _SIZES.items():
    for name, make in shuffles.items():
      shuffle = make(count)
      for batch in batch_sizes if shuffle else ():
        row = measure(shuffle, count, batch, args.batches)
        found.setdefault(size, {}).setdefault(name, []).append(row)
        print(size, name, json.dumps(row), flush=True)
  lost = {
    name: {
      count: count - len(np.unique(make(count)(np.arange(count))))
      for count in _LOST
    }
    for name, make in shuffles.items()
  }
  print('lost', json.dumps(lost))
  record.write(args.output, {**facts, 'orders': found, 'lost': lost})


if __name__ == '__main__':
  main()
