# SPDX-License-Identifier: Apache-2.0
"""Ranks that end or hang: the cause, and what follows."""

import pytest

from pipelines import errors
from tests.support import stories

ALL_75 = dict.fromkeys(range(8), 75)


def lost_0_and_1(code):
  return stories.ended(2, dict.fromkeys(range(2, 8), code))


STORIES = {
  'a rank is killed': (['running', 'killed 1'], ['restart']),
  'it crashes in C++': (
    ['running', stories.ended(1, {1: -11, 0: 75})],
    ['restart'],
  ),
  'it aborts alone': (['running', stories.ended(1, {1: -6})], ['restart']),
  'an exception that repeats itself stops': (
    ['running', 'raised 1'] * 3,
    ['restart', 'restart', 'stop 93'],
  ),
  'a new seal begins the count again': (
    ['running', 'raised 1'] * 2 + ['sealed 5'] + ['raised 1'] * 4,
    ['restart'] * 5 + ['stop 93'],
  ),
  'a killed node is replaced the second time': (
    ['running', 'killed 1', 'running', 'sealed 5', 'killed 1'],
    ['restart', 'replace_node'],
  ),
  'faults of two nodes are one of each': (
    ['running', 'killed 1', 'running', 'sealed 5', 'killed 4'],
    ['restart', 'restart'],
  ),
  'an exception is no fault of its node': (
    ['running', 'raised 1', 'running', 'sealed 5', 'raised 1'],
    ['restart', 'restart'],
  ),
  'usage': ([stories.ended(0, {0: 2, 1: 75})], ['stop 2']),
  'a verdict explains a signal': (
    [stories.ended(0, {0: -6, 1: 3})],
    ['stop 3'],
  ),
  'all were asked to stop': (
    ['running', stories.ended(0, ALL_75, detail='')],
    ['stop 75'],
  ),
  'all lost the others': (
    ['running', stories.ended(0, ALL_75, detail='is gone')],
    ['restart'],
  ),
  'an abort, and the others lost it': (
    ['running', 'aborted 1', 'running', 'sealed 5', 'aborted 1'],
    ['restart', 'replace_node'],
  ),
  'a frozen coordinator, twice': (
    ['running', lost_0_and_1(75), 'running', 'sealed 5', lost_0_and_1(-6)],
    ['restart', 'replace_node'],
  ),
  'killed for memory, the line first': (
    ['running', 'oom a', 'killed 1', 'running', 'oom a', 'killed 1'],
    ['warn', 'restart', 'warn', 'stop 93'],
  ),
  'killed for memory, the line last': (
    ['running', 'killed 1', 'oom a', 'running', 'killed 1', 'oom a'],
    ['restart', 'warn', 'restart', 'stop 93'],
  ),
  'killed for memory, with a seal between': (
    ['running', 'oom a', 'killed 1', 'sealed 5', 'oom a', 'killed 1'],
    ['warn', 'restart', 'warn', 'restart'],
  ),
}


@pytest.mark.parametrize('name', STORIES)
def test_story(name):
  story, expected = STORIES[name]
  # Close enough that a kill and the kernel's line about it belong together.
  assert stories.done(story, apart_s=4.0) == expected


def test_store_that_is_away_is_waited_for_and_nobody_s_fault():
  codes = {1: errors.AGAIN}  # The others wait for it in the step.
  away = stories.ended(1, codes, detail='s3://a/b did not answer 7 times')
  state, actions = stories.tell(['running', away, 'sealed 9', away])
  assert [a.kind for a in actions if a.kind != 'ignore'] == ['restart'] * 2
  assert not state.strikes and not state.suspects
  lost = stories.ended(1, {1: errors.UNUSABLE}, detail='is missing')
  assert stories.done(['running', lost]) == ['stop 3']


def test_killed_for_memory_is_no_strike():
  story = ['running', 'killed 1', 'oom a']
  state, _ = stories.tell(story, apart_s=4.0)
  assert not state.strikes and not state.quarantine
  state, _ = stories.tell(story, apart_s=40.0)  # Another process.
  assert [node for node, _ in state.strikes] == ['a']


def test_who_hangs_is_named_and_the_second_time_replaced():
  hang = stories.hang(entered={2: 6, 3: 6})
  state, actions = stories.tell(['running', hang, 'running', 'sealed 9', hang])
  first, second = actions[1], actions[-1]
  assert (first.kind, first.node) == ('restart', 'b')
  assert (second.kind, second.node) == ('replace_node', 'b')
  assert state.quarantined == ('b',)


def test_pair_under_suspicion_goes_only_when_it_happens_again():
  pair = stories.hang(entered={1: 6, 4: 6})  # Of nodes a and c.
  assert stories.done(['running', pair]) == ['restart']
  state, actions = stories.tell(
    ['running', pair, 'running', pair], condemn_share=0.5
  )
  assert actions[-1].kind == 'replace_node'
  assert set(state.quarantined) == {'a', 'c'}
  # Only who was there both times is under suspicion.
  other = stories.hang(entered={1: 6, 7: 6})
  state, actions = stories.tell(['running', pair, 'running', other])
  assert state.quarantined == ('a',)
  story = ['running', pair, 'running', pair]
  one = stories.done(story, spares=('s',), condemn_share=0.5)
  assert one == ['restart'] * 2
  # Nor one of two, where the cap leaves room for one.
  assert stories.done(story, spares=('s', 't')) == ['restart'] * 2


def test_nobody_is_evicted_where_all_wait():
  hang = stories.hang()
  state, actions = stories.tell(['running', hang, 'running', 'sealed 9', hang])
  assert [a.kind for a in actions if a.kind != 'ignore'] == ['restart'] * 2
  assert not state.quarantine and not state.strikes
  assert actions[1].node is None
