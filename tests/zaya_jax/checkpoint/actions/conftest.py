# SPDX-License-Identifier: Apache-2.0
"""A run with four checkpoints, and --mode=checkpoints in this process."""

import json

import pytest

from zaya_jax import config as config_lib
from zaya_jax.checkpoint.actions import listing


@pytest.fixture
def act(capsys, tmp_path):
  """A function: settings of checkpoints -> (exit code, JSON lines)."""

  def run(action, source=None, output='', **settings):
    config = config_lib.Config(
      mode='checkpoints',
      source=str(source or tmp_path / 'run'),
      output=str(output),
      checkpoint=config_lib.CheckpointConfig(action=action, **settings),
    )
    code = listing.main(config)
    lines = capsys.readouterr().out.splitlines()
    return code, [json.loads(line) for line in lines]

  return run


@pytest.fixture
def run(make_manager, make_state, tmp_path):
  """A run with the checkpoints 1 to 4, of which 2 is the best."""
  (tmp_path / 'run').mkdir()
  (tmp_path / 'run' / 'config.flags').write_text('--seed=3\n')
  with make_manager(keep=9) as checkpoints:
    for step, bpb in ((1, 5.0), (2, 1.0), (3, 4.0), (4, 3.0)):
      meta = {'metrics': {'val/bpb': bpb}, 'config': {'optim': {'lr': step}}}
      state = make_state(step, shards=4)
      checkpoints.save(step, state, data_index=step, meta=meta)
  return tmp_path / 'run' / 'checkpoints'
