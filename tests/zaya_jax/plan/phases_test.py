# SPDX-License-Identifier: Apache-2.0
"""The plan of a recipe is the sum of plans of its segments."""

import pathlib

import pytest

from zaya_jax import config as config_lib
from zaya_jax.plan import phases, planner

CONFIGS = pathlib.Path(__file__).parents[3] / 'configs'


def _config(*words):
  return config_lib.Config.parse(
    [
      '--mode=plan',
      f'--flagfile={CONFIGS / "zaya1_8b.flags"}',
      f'--recipe={CONFIGS / "zaya1.toml"}',
      '--plan.devices=1024',
      *words,
    ]
  )


@pytest.fixture(scope='module')
def plan():
  return phases.make(_config(), planner.make)


def test_phases_cost_what_runs_of_their_own_would(plan):
  own = planner.make(
    config_lib.Config.parse(
      [
        f'--flagfile={CONFIGS / "zaya1_8b.flags"}', '--plan.devices=1024',
        '--data.seq_len=32768', '--data.batch_size=512', '--mesh.context=2',
        '--model.rope_theta=1e6', '--num_steps=71526',
      ]
    )
  )  # fmt: skip
  last = plan['segments'][-1]
  assert last['phase'] == 'mid' and last['steps'] == 71_526
  assert last['plan'] == own
  assert last['days'] == pytest.approx(own['time']['budget_days'])


def test_the_sum_is_that_of_the_published_tokens(plan):
  total = plan['total']
  assert 13.2e12 <= total['tokens'] < 13.2e12 + 5 * 2**24
  seconds = sum(s['steps'] * s['step'] for s in plan['segments'])
  assert total['days'] == pytest.approx(seconds / 86_400)
  assert [s['phase'] for s in plan['segments']] == [
    'pretrain1', 'pretrain1', 'pretrain1', 'pretrain2', 'mid',
  ]  # fmt: skip


def test_the_compiler_sees_each_kind_of_step_once():
  found = phases.kinds(_config())
  assert list(found) == ['pretrain1', 'mid']
  assert [c.data.seq_len for c in found.values()] == [4096, 32_768]
  assert not any(c.recipe or c.course for c in found.values())


def test_a_phase_that_does_not_fit_is_named(tmp_path):
  text = (CONFIGS / 'zaya1.toml').read_text()
  path = tmp_path / 'r.toml'
  path.write_text(text.replace('"mesh.context" = 2', '"mesh.context" = 3'))
  with pytest.raises(config_lib.UsageError, match='phase "mid": --plan'):
    phases.make(_config(f'--recipe={path}'), planner.make)
