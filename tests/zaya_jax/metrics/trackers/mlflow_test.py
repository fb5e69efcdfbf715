# SPDX-License-Identifier: Apache-2.0
"""MLflow itself, without a server: what it holds, also after a resume."""

import math

import pytest

from zaya_jax import config as config_lib

pytestmark = pytest.mark.long
mlflow = pytest.importorskip('mlflow')


def test_rows_of_a_run_are_found_by_mlflow(tmp_path, monkeypatch):
  # What mlflow-skinny can do without a database.
  monkeypatch.setenv('MLFLOW_ALLOW_FILE_STORE', 'true')
  monkeypatch.setenv('MLFLOW_TRACKING_URI', f'file:{tmp_path}/store')
  mlflow.set_tracking_uri(f'file:{tmp_path}/store')
  from zaya_jax.metrics.trackers import mlflow as ours

  config = config_lib.Config(run_dir=str(tmp_path / 'mine'), num_steps=7)
  (tmp_path / 'mine').mkdir()
  tracker = ours.Tracker(config)
  tracker.scalars({'train/loss': 2.5, 'val/loss': math.nan}, 1)
  tracker.text('sample', 'def f(x):', 1)
  tracker.close()
  tracker = ours.Tracker(config)
  tracker.scalars({'train/loss': 1.5, 'val/bpb/a+b': 1.0}, 4)
  tracker.close()
  client = mlflow.MlflowClient()
  home = client.get_experiment_by_name('zaya_jax').experiment_id
  (run,) = client.search_runs([home])
  told = client.get_metric_history(run.info.run_id, 'train/loss')
  assert [(one.step, one.value) for one in told] == [(1, 2.5), (4, 1.5)]
  assert 'val/loss' not in run.data.metrics
  assert run.data.metrics['val/bpb/a_b'] == 1.0
  assert run.data.params['num_steps'] == '7'
  assert (run.info.run_name, run.info.status) == ('mine', 'FINISHED')
  kept = mlflow.artifacts.load_text(
    f'{run.info.artifact_uri}/sample/step_000001.txt'
  )
  assert kept == 'def f(x):'
