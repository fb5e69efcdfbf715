# SPDX-License-Identifier: Apache-2.0
"""The steps between two rows of metrics.jsonl, and how they become one."""

import math
from collections.abc import Callable

import numpy as np

# The newest and the extreme; of all other numbers the mean counts.
_COMBINE: dict[str, Callable[[list[float]], float]] = {
  'optim/lr': lambda values: values[-1],
  'optim/skipped': lambda values: values[-1],
  'optim/bad_steps': lambda values: values[-1],
  'moe/load_max': max,
  'moe/load_min': min,
}


class Window:
  """Collects the numbers of steps."""

  def __init__(self):
    self._steps: list[dict[str, float]] = []
    self._tokens = 0

  def add(
    self,
    measured: dict[str, float],
    *,
    tokens: int,
    step_s: float,
    data_s: float,
  ) -> None:
    """Adds one step.

    Args:
      measured: its numbers, by name.
      tokens: that it trained on.
      step_s: seconds since the step before.
      data_s: seconds of these spent waiting for the batch.
    """
    times = {'time/step_s': step_s, 'time/data_s': data_s}
    self._steps.append({**measured, **times})
    self._tokens += tokens

  @property
  def step_s(self) -> float:
    """Seconds of a step, the mean."""
    return float(np.mean([step['time/step_s'] for step in self._steps]))

  @property
  def tokens_per_second(self) -> float:
    """Tokens of all steps over their seconds."""
    return self._tokens / (self.step_s * len(self._steps))

  def mean(self, name: str) -> float:
    """Of one number; the NaN of a skipped step does not count."""
    values = [step.get(name, math.nan) for step in self._steps]
    values = [x for x in values if math.isfinite(x)]
    return float(np.mean(values)) if values else math.nan

  def combine(self) -> dict[str, float]:
    """One number for each name; the NaN of a skipped step does not count."""
    combined = {}
    for name in self._steps[0]:
      values = [step[name] for step in self._steps if math.isfinite(step[name])]
      combine = _COMBINE.get(name, np.mean)
      combined[name] = float(combine(values)) if values else math.nan
    combined['throughput/tokens_per_second'] = self.tokens_per_second
    if peak := peak_bytes():
      combined['memory/peak_bytes'] = float(peak)
    return combined


def peak_bytes() -> int:
  """Most bytes in use at once on one device; 0: the devices do not say."""
  return _least_or_most(max, 'peak_bytes_in_use')


def limit_bytes() -> int:
  """Bytes that programs may take of each device; 0: they do not say."""
  return _least_or_most(min, 'bytes_limit')


def _least_or_most(choose, name: str) -> int:
  import jax  # Who reads pages of runs need not wait for it.

  stats = [device.memory_stats() or {} for device in jax.local_devices()]
  return choose((found.get(name, 0) for found in stats), default=0)
