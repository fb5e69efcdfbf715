# SPDX-License-Identifier: Apache-2.0
"""Wrong numbers: what is rolled back, and how far."""

import pytest

from tests.support import stories

STORIES = {
  'NaN, three times': (
    ['sealed 5', ('not_finite', {'step': 9, 'good_step': 7})] * 3,
    ['rollback', 'rollback', 'stop 4'],
  ),
  'NaN, long ago': (
    ['sealed 5', *(f'not_finite {2000 * k}' for k in (1, 2, 3, 4))],
    ['rollback'] * 4,
  ),
  'jumps of the loss': (
    ['sealed 5', *(f'loss_spike {k}' for k in (10, 20, 30))],
    ['warn', 'warn', 'rollback'],
  ),
  'jumps after a rollback are counted anew': (
    ['sealed 5', *(f'loss_spike {k}' for k in (10, 20, 30, 40, 50))],
    ['warn', 'warn', 'rollback', 'warn', 'warn'],
  ),
  'jumps far apart': (
    [f'loss_spike {1000 * k}' for k in range(9)],
    ['warn'] * 9,
  ),
  'a wrong result, and again': (
    ['running'] + [('wrong_result', {'node': 'b', 'good_step': 4})] * 2,
    ['warn', 'replace_node'],
  ),
  'wrong results of nobody known': (
    ['running'] + [('wrong_result', {'good_step': 4})] * 3,
    ['warn'] * 3,
  ),
  'a replica is outvoted': (
    ['sealed 5', ('corrupt_replica', {'node': 'b', 'good_step': 4})],
    ['replace_node'],
  ),
  'replicas differ, without a majority': (
    ['sealed 5', ('corrupt_replica', {'good_step': 4})],
    ['restart'],
  ),
}


@pytest.mark.parametrize('name', STORIES)
def test_story(name):
  story, expected = STORIES[name]
  assert stories.done(story) == expected


def test_rollback_goes_behind_the_last_good_step_and_skips_the_data():
  seals = [f'sealed {step}' for step in (5, 10, 15)]
  bad = ('not_finite', {'step': 18, 'good_step': 12})
  state, actions = stories.tell([*seals, bad])
  assert (actions[-1].step, actions[-1].steps) == (10, 8)
  assert state.skip == (10, 8) and state.sealed == (5, 10)
  again = ('not_finite', {'step': 13, 'good_step': 12})
  state, _ = stories.tell([*seals, bad, again])
  assert state.skip == (10, 11)  # More of the data.
  state, actions = stories.tell([*seals, bad, 'not_finite 25'])
  assert (actions[-1].step, actions[-1].steps) == (5, 20)


def test_rollback_takes_a_checkpoint_that_is_still_there():
  kept = ('sealed', {'step': 30, 'seals': (20, 25, 30)})
  bad = 'not_finite 33'
  state, actions = stories.tell(['sealed 5', kept, bad, 'not_finite 34'])
  first, second = actions[-2:]
  assert (first.step, first.steps) == (30, 3)
  assert (second.step, second.steps) == (20, 14)  # The oldest.
  assert state.skip == (20, 14)
  gone = ('sealed', {'step': 30, 'seals': (25, 30)})
  state, _ = stories.tell([kept, 'raised 1', gone])
  assert state.sealed == (25, 30) and not state.gained


def test_rollback_without_a_seal_begins_where_the_trainer_finds():
  _, (action,) = stories.tell(['not_finite 18'])
  assert (action.kind, action.step, action.steps) == ('rollback', None, 0)


def test_numerics_that_end_the_ranks_roll_back():
  bad = stories.ended(0, dict.fromkeys(range(8), 4), good_step=6)
  _, (*_, last) = stories.tell(['sealed 5', bad])
  assert (last.kind, last.step, last.steps) == ('rollback', 5, 2)


def test_seals_after_a_wrong_number_are_not_trusted():
  wrong = ('corrupt_replica', {'node': 'b', 'good_step': 7})
  state, actions = stories.tell(['sealed 5', 'sealed 10', wrong])
  assert actions[-1].step == 5 and state.sealed == (5,)


def test_nothing_is_skipped_where_only_a_later_checkpoint_is_left():
  state, actions = stories.tell(['sealed 10', 'not_finite 8'])
  assert (actions[-1].step, actions[-1].steps) == (10, 0)
  assert state.skip == (10, 0)
