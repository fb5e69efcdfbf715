# SPDX-License-Identifier: Apache-2.0
"""Budgets of restarts, waits, and the checkpoint to go back to."""

import pytest

from tests.support import stories
from zaya_jax.aegis.decide import decide as decide_lib
from zaya_jax.aegis.decide import recovery
from zaya_jax.aegis.decide import state as state_lib


def test_three_nodes_lost_in_one_incident_count_once():
  story = ['running', *(f'agent_lost {node}' for node in 'abs')]
  state, actions = stories.tell(story[:-1], condemn_share=0.5)
  assert len(state.restarts) == 1
  state, actions = stories.tell(story, condemn_share=0.5)
  # The third has no spare, and may not be left out.
  assert [a.kind for a in actions[1:]] == ['replace_node'] * 2 + ['stop']
  assert actions[-1].exit_code == 75 and state.absent == ('s',)


def test_budget_of_an_hour():
  # A seal in each generation: nothing but the number of incidents is wrong.
  def story(count):
    return [
      x for n in range(count) for x in ('running', 'raised 1', f'sealed {n}')
    ]

  assert stories.done(story(10)) == ['restart'] * 10
  assert stories.done(story(11)) == ['restart'] * 10 + ['stop 75']
  assert stories.done(story(40), apart_s=200.0) == ['restart'] * 40


def test_waits_grow_up_to_a_limit():
  story = [x for n in range(9) for x in ('running', 'raised 1', f'sealed {n}')]
  _, actions = stories.tell(story, backoff_s=5.0)
  waits = [a.delay_s for a in actions if a.kind == 'restart']
  assert waits == [0, 0, 0, 1, 2, 4, 5, 5, 5]


@pytest.mark.parametrize(
  'good, kept',
  [(4, (5,)), (5, (5,)), (9, (5,)), (10, (5, 10)), (99, (5, 10, 15))],
)
def test_seals_after_the_last_good_step_are_forgotten(good, kept):
  state = state_lib.State(sealed=(5, 10, 15))
  state, step = recovery.seal_before(state, good)
  assert (state.sealed, step) == (kept, kept[-1])


def test_without_a_seal_the_trainer_chooses():
  assert recovery.seal_before(state_lib.State(), 7) == (state_lib.State(), None)


def test_drain_is_over_when_the_next_generation_begins():
  again = stories.ruled('ecc_burst', 'checkpoint_and_drain', 'c')
  state, actions = stories.tell(
    ['running', 'burst b', 'drained', again], condemn_share=0.5
  )
  assert [a.kind for a in actions[1:]] == [
    'checkpoint_and_drain', 'replace_node', 'checkpoint_and_drain',
  ]  # fmt: skip
  assert state.draining == 'c'


def test_incidents_of_a_clock_that_was_ahead_do_not_count():
  event = stories.event('raised 1')
  ahead = state_lib.start(stories.NODES).but(
    running=True, restarts=(event.time_s + 3e7,) * 11
  )
  state, action = decide_lib.decide(ahead, event)
  assert action.kind == 'restart' and state.restarts == (event.time_s,)


def test_reason_says_what_was_seen_the_count_and_the_budget():
  _, actions = stories.tell(['running', 'ecc b', 'running', 'raised 1'])
  assert actions[1].reason == (
    'ecc_uncorrectable: ecc_uncorrectable; 1 of 2 condemned this hour, 1 of 1 '
    'in quarantine; 1 of 10 incidents this hour, 0 of 3 without a seal'
  )
  assert actions[3].reason.endswith(
    '2 of 10 incidents this hour, 1 of 3 without a seal'
  )


def test_beyond_the_cap_the_same_nodes_go_on_until_the_budget_ends():
  lines = [stories.ruled('ecc', 'replace_node', node) for node in 'bc'] * 9
  state, actions = stories.tell(['running', *lines], restarts_per_hour=4)
  assert state.quarantined == ('b',) and 'c' in state.nodes
  actions = [action for action in actions if action.kind != 'ignore']
  kinds = [action.kind for action in actions]
  assert kinds[:5] == ['replace_node', 'restart', 'restart', 'restart', 'stop']
  capped = actions[2].reason
  assert 'the cap keeps c, a person must look' in capped
  assert actions[4].exit_code == 75


def test_alarm_is_on_while_nothing_runs_and_off_when_something_does():
  def alarm(*story):
    state, actions = stories.tell(['running', *story])
    return bool(state.alarm), actions[-1].kind

  many = ('agent_lost', {'nodes': ('a', 'b', 'c')})
  assert alarm() == (False, 'ignore')
  assert alarm(many) == (True, 'wait')
  assert alarm(many, 'running') == (False, 'ignore')
  assert alarm(stories.ended(0, {0: 3})) == (True, 'stop')
  assert alarm('done') == (False, 'stop')
  assert alarm('storage') == (True, 'warn')
  assert alarm('storage', 'sealed 5') == (False, 'ignore')
