# SPDX-License-Identifier: Apache-2.0
"""The order of training: which window comes at which place.

A function of (seed, place) alone: it holds at any batch size and any number of
processes.
"""

from collections.abc import Sequence

import grain

from pipelines import sources


def windows(
  parts: Sequence[sources.WindowSource],
  weights: Sequence[float],
  *,
  seed: int,
) -> grain.MapDataset:
  """An endless sequence of windows, each epoch of a folder in another order.

  Args:
    parts: the windows of each folder.
    weights: the share of each folder, before normalization.
    seed: of the order.

  Returns:
    At each place, from 0, a window: int32 [L + 1].
  """
  datasets = [
    grain.MapDataset.source(part).seed(seed + i).shuffle().repeat(None)
    for i, part in enumerate(parts)
  ]
  if len(datasets) == 1:
    return datasets[0]
  return grain.MapDataset.mix(datasets, list(weights))


def epochs(
  parts: Sequence[sources.WindowSource], weights: Sequence[float], count: int
) -> list[float]:
  """How often each folder has been read once `count` windows are given out."""
  return [
    count * weight / sum(weights) / len(part)
    for part, weight in zip(parts, weights, strict=True)
  ]


def rows(batch_size: int, shard_index: int, shard_count: int) -> range:
  """The rows of a global batch that one process reads: neighbours."""
  size = batch_size // shard_count
  return range(shard_index * size, (shard_index + 1) * size)
