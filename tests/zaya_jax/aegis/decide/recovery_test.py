# SPDX-License-Identifier: Apache-2.0
"""Budgets of restarts, waits, and the checkpoint to go back to."""

import pytest

from tests.support import stories
from zaya_jax.aegis.decide import recovery
from zaya_jax.aegis.decide import state as state_lib


def test_three_nodes_lost_in_one_incident_count_once():
  story = ['running', *(f'agent_lost {node}' for node in 'abs')]
  state, actions = stories.tell(story)
  assert len(state.restarts) == 1
  # The third has no spare, and may not be left out.
  assert [a.kind for a in actions[1:]] == ['replace_node'] * 2 + ['stop']
  assert actions[-1].exit_code == 75 and actions[-1].node == 's'


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
  state, actions = stories.tell(['running', 'burst b', 'drained', again])
  assert [a.kind for a in actions[1:]] == [
    'checkpoint_and_drain', 'replace_node', 'checkpoint_and_drain',
  ]  # fmt: skip
  assert state.draining == 'c'
