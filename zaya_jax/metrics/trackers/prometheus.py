# SPDX-License-Identifier: Apache-2.0
"""--log.metrics_port: the newest values of a run as gauges for Prometheus."""

import re
import time
from collections.abc import Mapping

import prometheus_client

# Bits per byte of a folder: a name with letters that Prometheus does not know.
_ODD = re.compile(r'\W')


class Tracker:
  """Gauges: zaya_jax_train_loss is `train/loss`, and so on.

  `step` and `step_age_seconds` are named and mean as those of a supervisor.

  Attributes:
    registry: what is exported.
  """

  def __init__(self) -> None:
    self.registry = prometheus_client.CollectorRegistry()
    self._gauges: dict[str, prometheus_client.Gauge] = {}
    self._moved = time.monotonic()
    self._step = 0
    self._gauge('step', 'The step of the last row.').set(0)
    age = self._gauge('step_age_seconds', 'Time since then, or the start.')
    age.set_function(lambda: time.monotonic() - self._moved)

  def scalars(self, values: Mapping[str, float], step: int) -> None:
    """Takes the numbers of a row."""
    if step != self._step:
      self._step, self._moved = step, time.monotonic()
    self._gauges['step'].set(step)
    for name, value in values.items():
      key = _ODD.sub('_', name)
      gauge = self._gauges.get(key) or self._gauge(
        key, f'{name} of metrics.jsonl.'
      )
      gauge.set(value)

  def text(self, name: str, words: str, step: int) -> None:
    """Prometheus has no texts."""

  def close(self) -> None:
    """There is nothing left to pass on."""

  def _gauge(self, key: str, words: str) -> prometheus_client.Gauge:
    gauge = prometheus_client.Gauge(
      f'zaya_jax_{key}', words, registry=self.registry
    )
    self._gauges[key] = gauge
    return gauge
