# SPDX-License-Identifier: Apache-2.0
"""--mode=supervise does what its flags say."""

import sys

import pytest

from zaya_jax import config as config_lib
from zaya_jax.aegis import mode
from zaya_jax.aegis.drills import mode as drills
from zaya_jax.aegis.supervisor import replay, supervisor


@pytest.mark.parametrize(
  'settings, called',
  [
    (dict(aegis=config_lib.AegisConfig(replay='x')), 'replay'),
    (dict(drill=('kill_rank',)), 'drill'),
    (dict(run_dir='r'), 'supervise'),
  ],
)
def test_one_thing_is_done(monkeypatch, settings, called):
  done = []
  monkeypatch.setattr(replay, 'run', lambda path: done.append('replay'))
  monkeypatch.setattr(drills, 'main', lambda config: done.append('drill'))
  monkeypatch.setattr(
    supervisor, 'supervise', lambda config, program: done.append('supervise')
  )
  mode.main(config_lib.Config(mode='supervise', **settings))
  assert done == [called]


def test_ranks_are_started_as_the_command_line_is(monkeypatch):
  monkeypatch.setattr(supervisor, 'supervise', lambda config, program: program)
  program = mode.main(config_lib.Config(mode='supervise', run_dir='r'))
  assert program == (sys.executable, '-m', 'zaya_jax.main')
