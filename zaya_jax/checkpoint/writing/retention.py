# SPDX-License-Identifier: Apache-2.0
"""Which checkpoints stay: the newest, the best and every k-th."""

import math
import os
from collections.abc import Mapping

from zaya_jax import config as config_lib
from zaya_jax.checkpoint import folders, seal
from zaya_jax.checkpoint.writing import leftovers

_BEST = 'val/bpb'  # The lowest of this metric.


def kept(
  metrics: Mapping[int, Mapping[str, float]],
  config: config_lib.CheckpointConfig,
) -> set[int]:
  """The steps that stay.

  Args:
    metrics: of each checkpoint, by step; without 'val/bpb' it is never best.
    config: how many to keep.
  """
  steps = sorted(metrics)
  stay = set(steps[-config.keep :])
  if config.keep_every:
    stay |= {step for step in steps if step % config.keep_every == 0}
  values = {step: metrics[step].get(_BEST, math.inf) for step in steps}
  known = [step for step in steps if math.isfinite(values[step])]
  if known:
    stay.add(min(known, key=lambda step: (values[step], -step)))
  return stay


def prune(folder: str, config: config_lib.CheckpointConfig) -> list[int]:
  """Removes the sealed checkpoints that need not stay; returns their steps.

  What is not sealed is left alone: nobody knows what it is.
  """
  metrics = {
    step: seal.read(os.path.join(folder, str(step))).get('metrics', {})
    for step in folders.steps(folder)
  }
  gone = sorted(metrics.keys() - kept(metrics, config))
  for step in gone:
    leftovers.remove(os.path.join(folder, str(step)))
  return gone
