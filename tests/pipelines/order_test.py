# SPDX-License-Identifier: Apache-2.0
"""Which window of the training text comes at which place."""

import shutil

import pytest

from pipelines import manifest, order, prepare, sources

L = 16


def source(folder):
  return sources.WindowSource(folder, 'train', L, manifest.load(folder))


def take(parts, places, *, seed=3, weights=None):
  """The windows at these places, as tuples of L + 1 tokens."""
  weights = weights or [1.0] * len(parts)
  windows = order.windows(parts, weights, seed=seed)
  return [tuple(windows[place].tolist()) for place in places]


def test_each_epoch_gives_every_window_once_in_another_order(shards):
  part = source(shards)
  size = len(part)
  expected = [tuple(part[i].tolist()) for i in range(size)]
  epochs = [take([part], range(i * size, (i + 1) * size)) for i in range(2)]
  for epoch in epochs:
    assert sorted(epoch) == sorted(expected)
  assert epochs[0] != epochs[1]
  assert epochs[0] != expected


def test_order_follows_the_seed(shards):
  parts = [source(shards)]
  seeds = (3, 4, 2**32 - 1)
  orders = [tuple(take(parts, range(8), seed=seed)) for seed in seeds]
  assert len(set(orders)) == len(seeds)
  assert tuple(take([source(shards)], range(8), seed=3)) == orders[0]


@pytest.mark.parametrize('seed', [0, 2**32 - 1])
def test_mixture_follows_its_weights(tmp_path, shards, seed):
  text = tmp_path / 'z.txt'
  text.write_text('z' * 2000)
  prepare.prepare(str(text), tmp_path / 'z', record_tokens=64)
  parts, weights = [source(shards), source(tmp_path / 'z')], [3.0, 1.0]
  windows = take(parts, range(400), seed=seed, weights=weights)
  assert sum(ord('z') == window[1] for window in windows) == 100
  # At any place, whatever was read before.
  assert (
    take(parts, range(200, 250), seed=seed, weights=weights)
    == (windows[200:250])
  )


def test_parts_of_a_mixture_have_orders_of_their_own(tmp_path, shards):
  shutil.copytree(shards, tmp_path / 'copy')
  windows = take([source(shards), source(tmp_path / 'copy')], range(20))
  assert windows[0::2] != windows[1::2]


def test_epochs_by_hand():
  # Of 80 windows 60 are of the first folder, which has 30, and 20 of the other.
  parts = [range(30), range(80)]
  assert order.epochs(parts, [3.0, 1.0], 80) == [2.0, 0.25]


def test_processes_read_neighbouring_rows():
  assert list(order.rows(6, 1, 3)) == [2, 3]
  assert [r for i in range(3) for r in order.rows(6, i, 3)] == list(range(6))
