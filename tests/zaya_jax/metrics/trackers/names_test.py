# SPDX-License-Identifier: Apache-2.0
"""A run has one name at each tracker, whenever it is started."""

from zaya_jax.metrics.trackers import names


def test_names_are_kept_beside_each_other(tmp_path):
  assert names.read(tmp_path, 'wandb') is None
  names.keep(tmp_path, 'wandb', 'a')
  names.keep(tmp_path, 'mlflow', 'b')
  names.keep(tmp_path, 'wandb', 'c')
  assert names.read(tmp_path, 'wandb') == 'c'
  assert names.read(tmp_path, 'mlflow') == 'b'
