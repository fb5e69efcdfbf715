# SPDX-License-Identifier: Apache-2.0
"""Which checkpoints stay: the newest, the best and every k-th."""

import contextlib
import math
import os
from collections.abc import Mapping

from zaya_jax import config as config_lib
from zaya_jax.checkpoint import errors, folders, seal
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


def prune(folder: str, config: config_lib.CheckpointConfig) -> dict[int, str]:
  """Removes the sealed checkpoints that need not stay.

  What is not sealed is left alone: nobody knows what it is.

  Returns:
    Of each that need not stay why it could not be removed, or ''.
  """
  metrics = {}
  for step in folders.steps(folder):
    # One that goes at this moment, or is amended, is looked at next time.
    with contextlib.suppress(OSError, seal.BrokenError):
      body = seal.read(os.path.join(folder, str(step)))
      metrics[step] = body.get('metrics', {})
  gone = {}
  for step in sorted(metrics.keys() - kept(metrics, config)):
    gone[step] = ''
    try:
      leftovers.remove(os.path.join(folder, str(step)))
    except OSError as error:
      gone[step] = errors.cause(error)
  return gone
