# SPDX-License-Identifier: Apache-2.0
"""--log.mlflow: rows and samples for MLflow.

MLFLOW_TRACKING_URI and MLFLOW_EXPERIMENT_NAME hold; without the first, MLflow
writes mlflow.db where the program was started.
"""

import math
import os
import pathlib
import re
import time
from collections.abc import Iterator, Mapping
from typing import Any

import mlflow

from zaya_jax import config as config_lib
from zaya_jax.metrics.trackers import names

_NAME = 'mlflow'
_BATCH = 100  # Parameters that a request may have.
# What MLflow does not take in a name.
_ODD = re.compile(r'[^\w\-. :/]')


class Tracker:
  """A run at MLflow, the same after each start.

  Args:
    config: of the run.
  """

  def __init__(self, config: config_lib.Config):
    run_dir = pathlib.Path(config.run_dir)
    self._client = mlflow.MlflowClient()
    self._id = names.read(run_dir, _NAME) or ''
    if self._id:
      self._client.update_run(self._id, status='RUNNING')
      return
    title = os.environ.get('MLFLOW_EXPERIMENT_NAME', 'zaya_jax')
    found = self._client.get_experiment_by_name(title)
    home = found.experiment_id if found else None
    run = self._client.create_run(
      home or self._client.create_experiment(title),
      run_name=run_dir.absolute().name,
    )
    self._id = run.info.run_id
    names.keep(run_dir, _NAME, self._id)
    params = [
      mlflow.entities.Param(name, text)
      for name, text in _flat('', names.shown(config))
      if text
    ]
    for start in range(0, len(params), _BATCH):
      self._client.log_batch(self._id, params=params[start : start + _BATCH])

  def scalars(self, values: Mapping[str, float], step: int) -> None:
    """Logs a row; NaN and Inf are left out."""
    now = int(time.time() * 1000)
    rows = [
      mlflow.entities.Metric(_ODD.sub('_', name), value, now, step)
      for name, value in values.items()
      if math.isfinite(value)
    ]
    self._client.log_batch(self._id, metrics=rows)

  def text(self, name: str, words: str, step: int) -> None:
    """Keeps a text as an artifact."""
    self._client.log_text(self._id, words, f'{name}/step_{step:06d}.txt')

  def close(self) -> None:
    """Marks the run as finished."""
    self._client.set_terminated(self._id)


def _flat(
  prefix: str, settings: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
  """The settings by the names of their flags."""
  for name, value in settings.items():
    if isinstance(value, Mapping):
      yield from _flat(f'{prefix}{name}.', value)
    else:
      yield f'{prefix}{name}', str(value)
