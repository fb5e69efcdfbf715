# SPDX-License-Identifier: Apache-2.0
"""The table and the picture of a recipe's plan."""

import copy
import pathlib
import xml.etree.ElementTree as ET

import pytest

from zaya_jax import config as config_lib
from zaya_jax.plan import phases, planner
from zaya_jax.plan.show import phases as show

CONFIGS = pathlib.Path(__file__).parents[4] / 'configs'


@pytest.fixture(scope='module')
def plan():
  config = config_lib.Config.parse(
    [
      f'--flagfile={CONFIGS / "zaya1_8b.flags"}',
      f'--recipe={CONFIGS / "zaya1.toml"}',
      '--plan.devices=1024',
    ]
  )
  return phases.make(config, planner.make)


def test_one_table_has_a_row_for_each_segment(plan, capsys):
  show.show(plan)
  shown = capsys.readouterr().out
  rows = [line.split() for line in shown.splitlines()]
  firsts = [row[0] for row in rows if row]
  assert firsts.count('pretrain1') == 3 and firsts.count('together') == 1
  assert '464,916' in shown and 'context 2' in shown


def test_what_the_compiler_says_is_beside_it(plan, capsys):
  plan = copy.deepcopy(plan)
  rule = {'rule': 'peak', 'value': '81 GB', 'good': True, 'advice': ''}
  compare = {'memory together': [2e9, 1e9]}
  found = {'seconds': 20.0, 'compare': compare, 'contracts': [rule]}
  plan['compiled'] = {'mid': found}
  show.show(plan)
  shown = capsys.readouterr().out
  assert 'the step of mid, compiled by XLA:ROCm' in shown and '2.00GB' in shown


def test_the_picture_shows_the_run_to_scale(plan):
  picture = ET.fromstring(show.draw(plan))
  texts = ''.join(picture.itertext())
  assert '13.2T tokens' in texts and texts.count('pretrain1') >= 3
