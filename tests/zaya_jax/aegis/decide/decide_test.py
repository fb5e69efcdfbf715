# SPDX-License-Identifier: Apache-2.0
"""Every kind of event has its action, and decisions are pure."""

import dataclasses
import random
import typing

import pytest

from tests.support import stories
from zaya_jax.aegis.decide import decide as decide_lib
from zaya_jax.aegis.decide import events
from zaya_jax.aegis.decide import state as state_lib

OF_A_NODE = ('agent_lost', 'slow_rank', 'unhealthy', 'returned')

STORIES = {
  'a seal of an old step is no progress': (
    ['sealed 5', 'raised 1', 'raised 1', 'sealed 5', 'raised 1', 'raised 1'],
    ['restart'] * 3 + ['stop 93'],
  ),
  'what a trainer prints acts on no node': (
    ['running', stories.ruled('x', 'replace_node', 'b', source='trainer')],
    ['warn'],
  ),
  'failed saves': (['save_failed'] * 3, ['warn', 'warn', 'stop 3']),
  'failed saves with a seal between': (
    ['save_failed'] * 2 + ['sealed 5'] + ['save_failed'] * 2,
    ['warn'] * 4,
  ),
  'the end': (['done'], ['stop 0']),
  'a rule that only tells': ([stories.ruled('x', 'warn', 'b')], ['warn']),
  'a rule that ignores': ([stories.ruled('x', 'ignore', 'b')], []),
  'a rule that restarts': ([stories.ruled('x', 'restart', 'b')], ['restart']),
  'a rule that rolls back': (
    [stories.ruled('x', 'rollback', step=9)],
    ['rollback'],
  ),
  'a rule that stops': ([stories.ruled('x', 'stop')], ['stop 75']),
}


@pytest.mark.parametrize('name', STORIES)
def test_story(name):
  story, expected = STORIES[name]
  assert stories.done(story) == expected


def test_decisions_do_not_change_their_arguments():
  state = state_lib.start(stories.NODES)
  event = events.Event(time_s=1.0, kind='exit', progress=stories.ranks({1: -9}))
  before = dataclasses.asdict(state)
  assert decide_lib.decide(state, event) == decide_lib.decide(state, event)
  assert dataclasses.asdict(state) == before


# What the first event of each kind on a healthy run brings about.
FIRST = {
  'exit': 'restart',
  'hang': 'restart',
  'agent_lost': 'replace_node',
  'not_started': 'replace_node',
  'slow_rank': 'ignore',
  'unhealthy': 'replace_node',
  'paused': 'warn',
  'storage': 'warn',
  'returned': 'ignore',
  'running': 'ignore',
  'sealed': 'ignore',
  'save_failed': 'warn',
  'out_of_memory': 'warn',
  'not_finite': 'rollback',
  'refused_step': 'warn',
  'loss_spike': 'warn',
  'wrong_result': 'warn',
  'corrupt_replica': 'replace_node',
  'stop_requested': 'checkpoint_and_drain',
  'drained': 'stop',
  'done': 'stop',
}


@pytest.mark.parametrize('kind', events.KINDS)
def test_every_kind_has_an_answer(kind):
  state = state_lib.start(stories.NODES, spares=('s',))
  event = events.Event(time_s=1.0, kind=kind, node='a', step=1)
  assert decide_lib.decide(state, event)[1].kind == FIRST[kind]


def test_newest_seals_are_remembered():
  steps = tuple(range(0, 200, 10))
  state, _ = stories.tell([('sealed', {'step': 190, 'seals': steps})])
  assert state.sealed == steps[-16:]
  state, _ = stories.tell([f'sealed {step}' for step in steps])
  assert state.sealed == steps[-16:]


@pytest.mark.parametrize('seed', range(20))
def test_random_stories_keep_the_state_whole(seed):
  chance = random.Random(seed)
  names = (*stories.NODES, 's', 't')
  policy = state_lib.Policy(node_counts=(1, 3))
  state = state_lib.start(stories.NODES, spares=('s', 't'), policy=policy)
  for number in range(200):
    codes = {
      rank: chance.choice((None, 0, 1, 2, 3, 4, 75, -6, -9, -11))
      for rank in range(8)
    }
    event = events.Event(
      time_s=1e9 + 100.0 * number,
      kind=chance.choice((*events.KINDS, 'a_rule')),
      node=chance.choice((None, *names)),
      step=number,
      good_step=chance.choice((None, number - 7)),
      action=chance.choice((None, *typing.get_args(events.ActionKind))),
      source=chance.choice(('agent', 'kern', 'trainer')),
      progress=stories.ranks(codes if chance.random() < 0.5 else {}),
    )
    if event.node is None and event.kind in OF_A_NODE:
      continue
    before = state
    state, action = decide_lib.decide(state, event)
    everybody = (*state.nodes, *state.spares, *state.quarantined)
    assert len(set(everybody)) == len(everybody)
    assert set(everybody) <= set(names)
    assert 1 <= len(state.nodes) <= state.size
    assert action.kind in typing.get_args(events.ActionKind)
    ends = action.kind in ('restart', 'replace_node', 'rollback')
    assert (action.exit_code is None) or not ends
    if ends:
      assert state.generation == before.generation + 1
      assert 0 <= action.delay_s <= state.policy.backoff_s
      assert action.kind != 'replace_node' or action.node not in state.nodes
