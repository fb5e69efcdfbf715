# SPDX-License-Identifier: Apache-2.0
"""Nodes that are lost, sick, slow, drained or ready again."""

import pytest

from tests.support import stories

STORIES = {
  'a lost node': (['running', 'agent_lost b'], ['replace_node']),
  'two nodes lost, the second in recovery': (
    ['running', 'agent_lost b', 'agent_lost c'],
    ['replace_node', 'replace_node'],
  ),
  'an unhealthy spare is passed over': (
    ['running', 'ecc b', 'unhealthy s'],
    ['replace_node', 'replace_node'],
  ),
  'an unhealthy spare that waits': (['unhealthy t'], ['warn']),
  'uncorrectable memory errors': (['running', 'ecc b'], ['replace_node']),
  'more lines of a node that is gone': (
    ['running', 'ecc b', 'ecc b', 'reset b'],
    ['replace_node'],
  ),
  'a burst of corrected errors': (
    ['running', 'burst b', 'drained'],
    ['checkpoint_and_drain', 'replace_node'],
  ),
  'a drain that fails half-way still loses the node': (
    ['running', 'burst b', 'killed 4'],
    ['checkpoint_and_drain', 'replace_node'],
  ),
  'asked to stop': (
    ['running', 'stop_requested', 'drained'],
    ['checkpoint_and_drain', 'stop 75'],
  ),
  'asked to stop, and a rank is stuck': (
    ['running', 'stop_requested', stories.hang(entered={2: 6})],
    ['checkpoint_and_drain', 'stop 75'],
  ),
  'a slow rank': (
    ['slow_rank b'] * 10 + ['drained'],
    ['warn', 'checkpoint_and_drain', 'replace_node'],
  ),
}


@pytest.mark.parametrize('name', STORIES)
def test_story(name):
  story, expected = STORIES[name]
  assert stories.done(story) == expected


def test_spare_takes_the_ranks_of_the_lost_node():
  state, (_, action) = stories.tell(['running', 'ecc b'])
  assert action.node == 'b' and action.step is None and not action.delay_s
  assert state.nodes == ('a', 's', 'c', 'd')
  assert (state.spares, state.quarantined) == (('t',), ('b',))
  assert state.generation == 1 and not state.running


def test_drain_needs_somebody_to_take_the_place():
  assert stories.done(['running', 'burst b'], spares=()) == ['warn']


def test_spare_that_is_unhealthy_goes_into_quarantine():
  state, _ = stories.tell(['unhealthy t'])
  assert (state.spares, state.quarantined) == (('s',), ('t',))


def test_node_that_is_healthy_again_is_a_spare_without_strikes():
  story = ['running', stories.ended(1, {1: -11}, node='a'), 'agent_lost a']
  state, _ = stories.tell(story)
  assert [node for node, _ in state.strikes] == ['a']
  state, _ = stories.tell([*story, 'returned a'])
  assert (state.spares, state.strikes) == (('t', 'a'), ())
