# SPDX-License-Identifier: Apache-2.0
"""What a checkpoint says, and which changed settings a run may go on with."""

import dataclasses
import json

import pytest

from zaya_jax import config as config_lib
from zaya_jax.checkpoint import errors, meta


def described(config):
  found = meta.describe(
    config,
    flags='--seed=0\n',
    tokenizer_sha256='a',
    dataset_sha256='b',
    tokens=5,
    metrics={'val/bpb': 2.0},
  )
  return json.loads(json.dumps(found))


def changed(config, section, **values):
  part = dataclasses.replace(getattr(config, section), **values)
  return dataclasses.replace(config, **{section: part})


def test_model_comes_back_from_json():
  config = changed(
    config_lib.Config(), 'model', sliding_layers=(0, 2), sliding_window=8
  )
  assert meta.model_config(described(config)) == config.model


def test_versions_and_metrics_are_told():
  found = described(config_lib.Config())
  assert found['versions'].keys() >= {'python', 'jax', 'flax'}
  assert found['metrics'] == {'val/bpb': 2.0} and found['flags'] == '--seed=0\n'


def test_changed_model_is_refused_with_its_flags():
  before = config_lib.Config(run_dir='runs/a')
  now = changed(before, 'model', num_layers=5, rope_theta=1e6)
  with pytest.raises(errors.CheckpointError) as caught:
    meta.check_same_model(described(before), now)
  assert caught.value.exit_code == 2
  assert '--model.num_layers: 4 -> 5' in str(caught.value)
  assert '--model.rope_theta: 10000.0 -> 1000000.0' in str(caught.value)


def test_other_optimizer_is_refused_with_its_flag():
  before = config_lib.Config(run_dir='runs/a')
  now = changed(before, 'optim', name='adamw')
  with pytest.raises(errors.CheckpointError) as caught:
    meta.check_same_model(described(before), now)
  assert caught.value.exit_code == 2
  assert '--optim.name: muon -> adamw' in str(caught.value)
  assert '--restore=runs/a' in str(caught.value)


def test_how_the_model_is_computed_may_change():
  before = config_lib.Config()
  now = changed(before, 'model', remat='block', dtype='bfloat16')
  assert meta.check_same_model(described(before), now) == []


def test_other_changes_are_listed():
  before = config_lib.Config(run_dir='a')
  now = changed(changed(before, 'optim', lr=1e-3), 'data', batch_size=32)
  now = dataclasses.replace(now, run_dir='b', mode='eval', num_steps=9)
  assert meta.check_same_model(described(before), now) == [
    '--data.batch_size: 16 -> 32',
    '--num_steps: 1000 -> 9',
    '--optim.lr: 0.002 -> 0.001',
  ]


def test_setting_that_one_version_does_not_have_is_no_difference():
  config = config_lib.Config()
  older = described(config)
  del older['config']['model']['remat'], older['config']['optim']['lr']
  older['config']['model']['gone'] = 1
  assert meta.check_same_model(older, config) == []
