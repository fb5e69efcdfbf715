# SPDX-License-Identifier: Apache-2.0
"""Nodes that are lost, sick, slow, drained or ready again."""

import pytest

from tests.support import stories
from zaya_jax.aegis.decide import decide as decide_lib
from zaya_jax.aegis.decide import state as state_lib


def together(kind, *nodes, **more):
  return kind, {'nodes': nodes, **more}


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
  'no agent starts: the command is wrong': (
    [together('not_started', *'abcdst')],
    ['stop 2'],
  ),
  'the only node does not start': (
    [together('not_started', *'abcd')],
    ['stop 2'],
  ),
  'all are unhealthy: the check is broken': (
    [together('unhealthy', *'abcd')],
    ['stop 2'],
  ),
  'all were lost that have run: the power': (
    ['running', together('agent_lost', *'abcdst')],
    ['wait'],
  ),
  'none starts again after the power was lost': (
    [
      'running',
      together('agent_lost', *'abcd'),
      together('not_started', *'abcd'),
    ],
    ['wait', 'wait'],
  ),
  'a switch, and all return': (
    ['running', together('agent_lost', *'abc')]
    + [f'returned {node}' for node in 'abc'],
    ['wait', 'restart'],
  ),
  'a switch, and the ranks have gone on': (
    ['running', together('agent_lost', *'abc'), 'running', 'raised 1'],
    ['wait', 'restart'],
  ),
  'a switch, and ranks that lost others end': (
    ['running', together('agent_lost', *'abc'), 'aborted 1', stories.hang()],
    ['wait'],
  ),
  'a switch, and two never return': (
    ['running', together('agent_lost', *'abc'), 'returned a']
    + [together('agent_lost', *'bc', final=True)],
    ['wait', 'replace_node'],
  ),
  'a switch, and three never return': (
    ['running', together('agent_lost', *'abc')]
    + [together('agent_lost', *'abc', final=True)],
    ['wait', 'stop 75'],
  ),
  'a switch, and one more is lost': (
    ['running', together('agent_lost', *'abc'), 'agent_lost d'],
    ['wait', 'wait'],
  ),
  'asked to stop while nodes are awaited': (
    ['running', together('agent_lost', *'abc'), 'stop_requested'],
    ['wait', 'stop 75'],
  ),
  'many are lost while the run stops': (
    ['running', 'stop_requested', together('agent_lost', *'abc')],
    ['checkpoint_and_drain', 'stop 75'],
  ),
  'a switch of spares': ([together('agent_lost', *'st')], ['warn']),
  'some do not start, and spares do': (
    [together('not_started', *'ab')],
    ['replace_node'],
  ),
  'more do not start than there are spares': (
    [together('not_started', *'abc')],
    ['wait'],
  ),
  'some are unhealthy at once, and spares are there': (
    [together('unhealthy', *'ab')],
    ['replace_node'],
  ),
  'a switch ends a drain': (
    ['running', 'burst b', together('agent_lost', *'abc')]
    + [f'returned {node}' for node in 'abc'],
    ['checkpoint_and_drain', 'wait', 'restart'],
  ),
  'one does not start': (['not_started b'], ['replace_node']),
  'its own pause': (
    ['paused', 'agent_lost b', 'returned b'],
    ['warn', 'wait', 'restart'],
  ),
  'a pause long ago': (
    ['paused', 'running', 'running', 'agent_lost b'],
    ['warn', 'replace_node'],
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


def test_spare_that_breaks_is_condemned_as_far_as_the_caps_allow():
  broken = [stories.ruled('ecc', 'replace_node', node) for node in 'ts']
  state, actions = stories.tell(broken)
  assert (state.quarantined, state.absent) == (('t',), ('s',))
  assert [action.kind for action in actions] == ['warn', 'warn']
  assert state.nodes == stories.NODES and not state.spares


def test_node_that_returns_is_a_spare_without_strikes():
  story = ['running', stories.ended(1, {1: -11}, node='a'), 'not_started a']
  state, _ = stories.tell(story)
  assert [node for node, _ in state.strikes] == ['a']
  assert state.absent == ('a',) and not state.quarantine
  state, _ = stories.tell([*story, 'returned a'])
  assert (state.spares, state.strikes) == (('t', 'a'), ())


@pytest.mark.parametrize(
  'story',
  [
    [together('agent_lost', *'abc')],
    [together('agent_lost', *'abc'), together('agent_lost', *'ab', final=True)],
    [together('not_started', *'abc')],
    [together('not_started', 'a')],
    [together('unhealthy', *'abc')],
    [together('unhealthy', *'ab')],
    [together('unhealthy', *'abcd')],
    ['paused', 'agent_lost a', stories.ended(1, {1: -9}), 'killed 1'],
  ],
)
def test_nobody_is_condemned_for_what_happens_to_many(story):
  state, actions = stories.tell(story, apart_s=1.0)
  assert not state.quarantine and not state.strikes
  assert not any(action.condemned or action.run for action in actions)


def test_nodes_one_after_the_other_meet_the_caps():
  names = tuple(f'n{i}' for i in range(12))
  state = state_lib.start(names, spares=('s', 't', 'u', 'v'))
  for number, node in enumerate(names[:4]):
    event = stories.event(f'agent_lost {node}', number)
    state, action = decide_lib.decide(state, event)
  assert state.quarantined == ('n0', 'n1')  # Two an hour.
  assert state.absent == ('n2', 'n3')
  assert '2 of 2 condemned this hour' in action.reason
  assert action.reason.count('so n3 is only absent') == 1
  event = stories.event('agent_lost n4', 61)
  state, action = decide_lib.decide(state, event)
  assert action.exit_code == 75 and 'n4' in state.absent  # No spare is left.


def test_command_for_the_scheduler_is_part_of_the_decision():
  orders = (
    'scontrol update NodeName={node} Reason={reason}',
    'ssh {node} reboot',
  )
  _, actions = stories.tell(
    [
      'running',
      stories.ruled('ecc', 'replace_node', 'b', detail='$(reboot) x'),
    ],
    orders=orders,
  )
  assert actions[-1].condemned == ('b',)
  assert actions[-1].run == (
    'scontrol update NodeName=b Reason=ecc:_reboot_x',
    'ssh b reboot',
  )
  _, actions = stories.tell(['running', 'not_started b'], orders=orders)
  assert actions[-1].run == ()  # It is not broken.


def test_agent_is_believed_about_its_own_node():
  def said(kind, by, node, **more):
    seen = stories.ruled(kind, 'replace_node', node, by=by, **more)
    return stories.tell(['running', seen])

  state, _ = said('ecc', 'c', 'b')
  assert state.quarantined == ('c',)
  state, actions = said('done', 'c', 'b', source='agent')
  assert actions[-1].kind == 'warn' and not state.quarantine
  state, actions = said('corrupt_replica', 'c', 'b', source='rank')
  assert actions[-1].kind == 'warn' and not state.quarantine


def test_only_node_of_a_run_is_never_condemned():
  state = state_lib.start(('a',))
  event = stories.event(stories.ruled('ecc', 'replace_node', 'a'))
  state, action = decide_lib.decide(state, event)
  assert action.kind == 'restart' and state.nodes == ('a',)
  assert 'the cap keeps a' in action.reason


def test_wait_says_why():
  def why(*story):
    return stories.tell(story, apart_s=1.0)[1][-1].reason

  assert 'so many at once are a switch' in why(together('agent_lost', *'abc'))
  assert 'had not run' in why('paused', 'agent_lost b')
  outage = together('agent_lost', *'abc'), 'agent_lost d'
  assert 'belongs to the outage; nobody is condemned: 600 s' in why(*outage)


def test_stranger_is_no_spare():
  state, actions = stories.tell(['returned x'])
  assert 'x' not in state.spares and actions[-1].kind == 'ignore'
