# SPDX-License-Identifier: Apache-2.0
"""Which nodes a generation has, and what outlives a supervisor."""

import pytest

from tests.support import stories
from zaya_jax.aegis.decide import decide as decide_lib
from zaya_jax.aegis.decide import state as state_lib


@pytest.mark.parametrize(
  'counts, left',
  [((), None), ((1, 2), 2), ((3,), 3), ((3, 2), 3), ((5,), None)],
)
def test_without_a_spare_it_shrinks_to_an_allowed_size(counts, left):
  state, actions = stories.tell(
    ['running', 'ecc b'], spares=(), node_counts=counts
  )
  if left is None:
    assert (actions[1].kind, actions[1].exit_code) == ('stop', 75)
  else:
    assert actions[1].kind == 'replace_node' and len(state.nodes) == left
    assert 'b' not in (*state.nodes, *state.spares)


def test_it_grows_again_with_the_next_generation():
  story = ['running', 'not_started b', 'returned b', 'running', 'raised 1']
  state, _ = stories.tell(story, spares=(), node_counts=(2,))
  assert set(state.nodes) == set(stories.NODES) and not state.quarantine


def held(node, until_s=9e9):
  return state_lib.Held(node=node, reason='ecc', since_s=0.0, until_s=until_s)


def test_next_supervisor_remembers_nodes_and_skipped_data():
  last = state_lib.State(
    quarantine=(held('b', 60.0),),
    restarts=(3.0,),
    condemned=(('b', 3.0),),
    strikes=(('a', 1.0),),
    skip=(10, 8),
    fruitless=2,
    rollbacks=(5,),
  )
  state = state_lib.start(('a', 'b'), spares=('c',), last=last, time_s=9.0)
  assert (state.nodes, state.spares) == (('a', 'c'), ())
  assert state.quarantine == last.quarantine
  assert (state.restarts, state.strikes) == (last.restarts, last.strikes)
  assert state.condemned == last.condemned
  assert state.skip == (10, 8)
  # Budgets are filled again.
  assert not state.fruitless and not state.rollbacks


def test_quarantine_outlives_any_number_of_supervisors():
  state, _ = stories.tell(['running', 'ecc b'])
  for _ in range(5):
    state = state_lib.start(
      stories.NODES, spares=('s', 't'), last=state, time_s=1e9 + 1000
    )
    assert state.quarantined == ('b',)
    assert 'b' not in (*state.nodes, *state.spares)
    assert 'ecc_uncorrectable' in state.quarantine[0].reason


def test_other_runs_hold_nodes_too():
  state = state_lib.start(
    ('a', 'b'), spares=('c',), held=(held('a'),), time_s=9.0
  )
  assert (state.nodes, state.quarantined) == (('b', 'c'), ('a',))


def test_too_few_nodes_are_an_alarm_and_no_generation():
  last = state_lib.State(quarantine=(held('b'),))
  few = state_lib.start(('a', 'b'), last=last, time_s=9.0)
  assert few.nodes == () and few.spares == ('a',)
  assert few.alarm == '1 of 2 nodes are in quarantine: b (ecc)'
  shrunk = state_lib.start(
    ('a', 'b'),
    last=last,
    time_s=9.0,
    policy=state_lib.Policy(node_counts=(1,)),
  )
  assert (shrunk.nodes, shrunk.alarm) == (('a',), '')


def test_quarantine_ends_with_its_time_and_a_check():
  state, _ = stories.tell(['running', 'ecc b'], quarantine_s=1000.0)
  over = stories.event(('returned', {'node': 'b', 'time_s': 1e9 + 999}))
  state, action = decide_lib.decide(state, over)
  assert action.reason.startswith('b is in quarantine: ecc_uncorrectable')
  assert state.quarantined == ('b',)
  later = stories.event(('sealed', {'step': 5, 'time_s': 1e9 + 1060}))
  state, _ = decide_lib.decide(state, later)
  assert (state.quarantine, state.absent) == ((), ('b',))
  state, _ = decide_lib.decide(
    state, stories.event(('returned', {'node': 'b', 'time_s': 1e9 + 1070}))
  )
  assert (state.absent, state.spares) == ((), ('t', 'b'))


def test_next_supervisor_may_release_all():
  state, _ = stories.tell(['running', 'ecc b'])
  state = state_lib.start(
    stories.NODES,
    last=state,
    policy=state_lib.Policy(quarantine_s=0.0),
    time_s=1e9 + 100,
  )
  assert state.nodes == ('a', 'c', 'd', 'b') and not state.quarantine


def test_clock_that_was_ahead_keeps_no_node_longer():
  last = state_lib.State(quarantine=(held('b', 1e9 + 4e7),))
  state = state_lib.start(('a', 'b'), last=last, time_s=1e9)
  assert state.quarantine[0].until_s == 1e9 + state.policy.quarantine_s


def test_old_marks_are_forgotten():
  state = state_lib.State(slow=(('a', 1.0), ('b', 2.0)))
  event = stories.event(('slow_rank', {'node': 'a', 'time_s': 12.0}))
  ahead = state.but(slow=(*state.slow, ('c', 23.0)))  # Of a clock.
  assert ahead.mark('slow', event, keep_s=10.0) == state.mark(
    'slow', event, keep_s=10.0
  )
  assert state.mark('slow', event, keep_s=10.0).slow == (
    ('b', 2.0),
    ('a', 12.0),
  )
