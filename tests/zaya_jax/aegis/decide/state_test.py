# SPDX-License-Identifier: Apache-2.0
"""Which nodes a generation has, and what outlives a supervisor."""

import pytest

from tests.support import stories
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
  story = ['running', 'ecc b', 'returned b', 'running', 'raised 1']
  state, _ = stories.tell(story, spares=(), node_counts=(2,))
  assert set(state.nodes) == set(stories.NODES) and not state.quarantine


def test_next_supervisor_remembers_nodes_and_skipped_data():
  last = state_lib.State(
    quarantine=(state_lib.Held(node='b'),),
    restarts=(3.0,),
    strikes=(('a', 1.0),),
    skip=(10, 8),
    fruitless=2,
    rollbacks=(5,),
  )
  state = state_lib.start(('a', 'b'), spares=('c',), last=last)
  assert (state.nodes, state.spares) == (('a', 'c'), ('b',))
  assert (state.restarts, state.strikes) == (last.restarts, last.strikes)
  assert state.skip == (10, 8)
  # Budgets are filled again.
  assert not state.fruitless and not state.rollbacks


def test_old_marks_are_forgotten():
  state = state_lib.State(slow=(('a', 1.0), ('b', 2.0)))
  event = stories.event(('slow_rank', {'node': 'a', 'time_s': 12.0}))
  assert state.mark('slow', event, keep_s=10.0).slow == (
    ('b', 2.0),
    ('a', 12.0),
  )
