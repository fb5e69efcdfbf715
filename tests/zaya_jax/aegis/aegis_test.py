# SPDX-License-Identifier: Apache-2.0
"""docs/supervision.md names what aegis has: kinds, rules, budgets, drills."""

import pathlib
import re

import pytest

from tests.support import documents
from zaya_jax.aegis.decide import events
from zaya_jax.aegis.decide import state as state_lib
from zaya_jax.aegis.drills import table
from zaya_jax.aegis.watch import rules

PAGE = (documents.ROOT / 'docs' / 'supervision.md').read_text()
# Tests by the words of their names; stories and cases by their own text.
TESTS = '\n'.join(
  path.read_text()
  for path in (documents.ROOT / 'tests').rglob('*_test.py')
  if path != pathlib.Path(__file__)
)
in_checkout = pytest.mark.skipif(
  'def test_every_byte_of_every_file_counts' not in TESTS,
  reason='Bazel gives a part of the files',
)


def faults():
  start = PAGE.index('## The faults')
  return re.findall(r'^\| (\d+) \| (.*?) \| (.*) \|$', PAGE[start:], re.M)


def missing(cover):
  """Drills and tests of a cell that do not exist."""
  found = [
    name
    for part in re.findall(r'drills? ((?:`\w+`(?:, )?)+)', cover)
    for name in re.findall(r'`(\w+)`', part)
    if name not in table.DRILLS
  ]
  for names in re.findall(r'\btest ((?:\*[^*]+\*(?:, )?)+)', cover):
    for name in re.findall(r'\*([^*]+)\*', names):
      function = 'def test_' + name.replace(' ', '_')
      if function not in TESTS and f"'{name}'" not in TESTS:
        found.append(name)
  return found


@in_checkout
def test_every_fault_has_a_drill_a_test_or_a_reason():
  numbers = [int(number) for number, *_ in faults()]
  assert numbers == list(range(1, 1 + max(88, len(numbers))))
  for number, _, cover in faults():
    assert not missing(cover), number
    named = re.search(r'drills? `|test \*', cover)
    assert named or cover.startswith(('not tried: ', 'none exists: ')), number


def test_missing_ones_are_seen():
  assert missing('drills `kill_rank`, `no_such`') == ['no_such']
  assert missing('test *no such story*, *usage*') == ['no such story']
  assert not missing('drill `kill_rank`; test *budget of an hour*')


def test_every_kind_and_rule_is_explained():
  start, end = PAGE.index('## What each incident'), PAGE.index('## How much')
  named = set(re.findall(r'`(\w+)`', PAGE[start:end]))
  shipped = {rule.name for rule in rules.load()}
  assert not {*events.KINDS, *shipped} - named
  actions = {rule.name: rule.action for rule in rules.load()}
  for names, action in re.findall(
    r'^\| (`gpu.*?|`nic.*?|`pcie.*?|`machine.*?) \| (\w+) \|', PAGE, re.M
  ):
    for name in re.findall(r'`(\w+)`', names):
      assert actions[name] == action


def test_budgets_are_those_of_the_policy():
  policy = state_lib.Policy()
  text = (
    f'{policy.restarts_per_hour} incidents an hour .*'
    f'{policy.no_progress} generations without a new seal, '
    f'{policy.rollbacks} rollbacks within {policy.rollback_window:,} steps, '
    f'{policy.strikes} strikes of\\s+a node within a day, '
    f'{policy.failed_saves} failed saves, '
    f'{policy.out_of_memory} kills for memory'
  )
  assert re.search(text, PAGE, re.S)
  assert policy.strike_window_s == 86_400 and policy.backoff_s == 60
  assert (policy.spikes, policy.slow_windows) == (20, (3, 10))
