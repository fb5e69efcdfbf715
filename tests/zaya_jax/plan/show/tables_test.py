# SPDX-License-Identifier: Apache-2.0
"""The plan in words: what the tables say, and how numbers read."""

import pytest

from tests.support import released
from zaya_jax.plan import planner
from zaya_jax.plan.show import tables


@pytest.fixture(scope='module')
def plan():
  return planner.make(released.parse('--plan.devices=1024'))


def test_tables_have_each_part_of_the_plan(plan, capsys):
  tables.show(plan)
  shown = capsys.readouterr().out
  for word in ('8,840,488,784', '753,608,528', '444TFLOP', 'assumptions'):
    assert word in shown
  for part in (*plan['time']['parts'], *plan['time']['update']):
    assert part['name'] in shown
  for sent in plan['collectives']:
    assert f'{sent["kind"]} {sent["what"]}' in shown
  assert max(map(len, shown.splitlines())) <= 100


def test_memory_that_is_missing_is_said(capsys):
  tables.show(
    planner.make(released.parse('--plan.devices=8', '--plan.chip=cpu'))
  )
  assert 'MISSING' in capsys.readouterr().out


@pytest.mark.parametrize(
  'tokens, words',
  [(8e12, '2.4 days'), (3e11, '2.2 hours'), (1e10, '4.3 minutes'),
   (1e8, '2.58 s')],
)  # fmt: skip
def test_budget_is_told_in_its_unit(tokens, words, capsys):
  words = words.split()
  tables.show(
    planner.make(
      released.parse('--plan.devices=1024', f'--plan.tokens={tokens:.0f}')
    )
  )
  (line,) = [
    line for line in capsys.readouterr().out.splitlines() if 'GPU-hours' in line
  ]
  assert line.split()[2:4] == words


def test_compiled_step_stands_beside_the_formulas(plan, capsys):
  compiled = {
    'seconds': 43.0, 'host_bytes': 1.2e9,
    'compare': {'all-gather': [2e9, 1e9], 'new': [0, 5]},
    'contracts': [
      {'rule': 'peak', 'value': '81 GB', 'good': False, 'advice': 'Less.'}
    ],
    'kernels': {'fusion': {'sites': 3, 'launches': 120}},
  }  # fmt: skip
  tables.show({**plan, 'compiled': compiled})
  shown = capsys.readouterr().out
  assert 'in 43 s' in shown and '-50.0%' in shown
  assert 'CHANGE  peak. Less.' in shown and 'fusion' in shown


@pytest.mark.parametrize(
  'number, words',
  [(3.2e-6, '3 us'), (0.0124, '12.4 ms'), (2.5, '2.5 s'), (7265, '2:01:05')],
)
def test_seconds_in_words(number, words):
  assert tables.seconds(number) == words
