# SPDX-License-Identifier: Apache-2.0
"""Decisions: stories of events, each with the action that must follow."""

import dataclasses
import random
import typing

import pytest

from zaya_jax.aegis.decide import decide as decide_lib
from zaya_jax.aegis.decide import events
from zaya_jax.aegis.decide import state as state_lib

RUNNING = 'running', {}
# Four nodes of two ranks.
NODES = ('a', 'b', 'c', 'd')


def ranks(codes=(), entered=(), **of_rank):
  """Progress of eight ranks, of which some ended and some are behind."""
  codes, entered = dict(codes), dict(entered)
  return tuple(
    events.Progress(
      rank=rank,
      node=NODES[rank // 2],
      phase=of_rank.get('phases', {}).get(rank, 'step'),
      process=of_rank.get('processes', {}).get(rank, 'S'),
      entered=entered.get(rank, 7),
      exit_code=codes.get(rank),
    )
    for rank in range(8)
  )


def ended(first, codes, **more):
  return 'exit', {'rank': first, 'progress': ranks(codes), **more}


def hang(**more):
  return 'hang', {'progress': ranks(**more)}


def sealed(step):
  return 'sealed', {'step': step}


def ruled(kind, action, node=None, source='kern', **more):
  return kind, {'action': action, 'node': node, 'source': source, **more}


def tell(story, *, spares=('s', 't'), apart_s=60.0, **policy):
  """All actions of a story whose events are `apart_s` seconds apart."""
  state = state_lib.start(
    NODES, spares=spares, policy=state_lib.Policy(**policy)
  )
  actions = []
  for number, (kind, fields) in enumerate(story):
    fields = {'time_s': 1e9 + apart_s * number, 'detail': kind, **fields}
    event = events.Event(kind=kind, **fields)
    state, action = decide_lib.decide(state, event)
    actions.append(action)
  return state, actions


def done(story, **options):
  """The kinds of the actions of a story, without those that are ignored."""
  _, actions = tell(story, **{'spikes': 3, **options})
  return [
    action.kind + (f' {action.exit_code}' if action.kind == 'stop' else '')
    for action in actions
    if action.kind != 'ignore'
  ]


KILL_1 = ended(1, {1: -9, 0: -6, 2: 75, 3: 75})
KILL_4 = ended(4, {4: -9})
ABORT_1 = ended(0, {**dict.fromkeys(range(8), 75), 1: -6}, detail='is gone')
RAISE_1 = ended(1, {1: 1, 0: 75, 2: 75})
ECC_B = ruled('ecc_uncorrectable', 'replace_node', 'b')
OOM_A = 'out_of_memory', {'node': 'a', 'source': 'kern', 'action': 'warn'}

OF_A_NODE = (
  'agent_lost',
  'slow_rank',
  'unhealthy',
  'node_ready',
)

STORIES = {
  'a rank is killed': ([RUNNING, KILL_1], ['restart']),
  'it crashes in C++': ([RUNNING, ended(1, {1: -11, 0: 75})], ['restart']),
  'it aborts alone': ([RUNNING, ended(1, {1: -6})], ['restart']),
  'an exception that repeats itself stops': (
    [RUNNING, RAISE_1] * 3,
    ['restart', 'restart', 'stop 93'],
  ),
  'a new seal begins the count again': (
    [RUNNING, RAISE_1] * 2 + [sealed(5)] + [RAISE_1] * 4,
    ['restart'] * 5 + ['stop 93'],
  ),
  'a seal of an old step is no progress': (
    [sealed(5), RAISE_1, RAISE_1, sealed(5), RAISE_1, RAISE_1],
    ['restart'] * 3 + ['stop 93'],
  ),
  'a killed node is replaced the second time': (
    [RUNNING, KILL_1, RUNNING, sealed(5), KILL_1],
    ['restart', 'replace_node'],
  ),
  'faults of two nodes are one of each': (
    [RUNNING, KILL_1, RUNNING, sealed(5), KILL_4],
    ['restart', 'restart'],
  ),
  'an exception is no fault of its node': (
    [RUNNING, RAISE_1, RUNNING, sealed(5), RAISE_1],
    ['restart', 'restart'],
  ),
  'usage': ([ended(0, {0: 2, 1: 75})], ['stop 2']),
  'a verdict explains a signal': ([ended(0, {0: -6, 1: 3})], ['stop 3']),
  'all were asked to stop': (
    [RUNNING, ended(0, dict.fromkeys(range(8), 75), detail='')],
    ['stop 75'],
  ),
  'all lost the others': (
    [RUNNING, ended(0, dict.fromkeys(range(8), 75), detail='is gone')],
    ['restart'],
  ),
  'an abort, and the others lost it': (
    [RUNNING, ABORT_1, RUNNING, sealed(5), ABORT_1],
    ['restart', 'replace_node'],
  ),
  'a frozen coordinator, twice': (
    [RUNNING, ended(2, dict.fromkeys(range(2, 8), 75)), RUNNING, sealed(5)]
    + [ended(2, dict.fromkeys(range(2, 8), -6))],
    ['restart', 'replace_node'],
  ),
  'a lost node': (
    [RUNNING, ('agent_lost', {'node': 'b'})],
    ['replace_node'],
  ),
  'two nodes lost, the second in recovery': (
    [RUNNING, ('agent_lost', {'node': 'b'}), ('agent_lost', {'node': 'c'})],
    ['replace_node', 'replace_node'],
  ),
  'an unhealthy spare is passed over': (
    [RUNNING, ECC_B, ('unhealthy', {'node': 's'})],
    ['replace_node', 'replace_node'],
  ),
  'an unhealthy spare that waits': (
    [('unhealthy', {'node': 't'})],
    ['warn'],
  ),
  'uncorrectable memory errors': ([RUNNING, ECC_B], ['replace_node']),
  'more lines of a node that is gone': (
    [RUNNING, ECC_B, ECC_B, ruled('gpu_reset', 'replace_node', 'b')],
    ['replace_node'],
  ),
  'a burst of corrected errors': (
    [RUNNING, ruled('ecc_burst', 'checkpoint_and_drain', 'b'), ('drained', {})],
    ['checkpoint_and_drain', 'replace_node'],
  ),
  'a drain that fails half-way still loses the node': (
    [RUNNING, ruled('ecc_burst', 'checkpoint_and_drain', 'b'), KILL_4],
    ['checkpoint_and_drain', 'replace_node'],
  ),
  'what a trainer prints acts on no node': (
    [RUNNING, ruled('x', 'replace_node', 'b', source='trainer')],
    ['warn'],
  ),
  'asked to stop': (
    [RUNNING, ('stop_requested', {}), ('drained', {})],
    ['checkpoint_and_drain', 'stop 75'],
  ),
  'asked to stop, and a rank is stuck': (
    [RUNNING, ('stop_requested', {}), hang(entered={2: 6})],
    ['checkpoint_and_drain', 'stop 75'],
  ),
  'killed for memory, the line first': (
    [RUNNING, OOM_A, KILL_1, RUNNING, OOM_A, KILL_1],
    ['warn', 'restart', 'warn', 'stop 93'],
  ),
  'killed for memory, the line last': (
    [RUNNING, KILL_1, OOM_A, RUNNING, KILL_1, OOM_A],
    ['restart', 'warn', 'restart', 'stop 93'],
  ),
  'killed for memory, with a seal between': (
    [RUNNING, OOM_A, KILL_1, RUNNING, sealed(5), OOM_A, KILL_1],
    ['warn', 'restart', 'warn', 'restart'],
  ),
  'failed saves': ([('save_failed', {})] * 3, ['warn', 'warn', 'stop 3']),
  'failed saves with a seal between': (
    [('save_failed', {})] * 2 + [sealed(5)] + [('save_failed', {})] * 2,
    ['warn'] * 4,
  ),
  'NaN, three times': (
    [sealed(5), ('not_finite', {'step': 9, 'good_step': 7})] * 3,
    ['rollback', 'rollback', 'stop 4'],
  ),
  'NaN, long ago': (
    [sealed(5), *(('not_finite', {'step': 2000 * k}) for k in (1, 2, 3, 4))],
    ['rollback'] * 4,
  ),
  'jumps of the loss': (
    [sealed(5), *(('loss_spike', {'step': k}) for k in (10, 20, 30))],
    ['warn', 'warn', 'rollback'],
  ),
  'jumps far apart': (
    [('loss_spike', {'step': 1000 * k}) for k in range(9)],
    ['warn'] * 9,
  ),
  'a wrong result, and again': (
    [RUNNING] + [('wrong_result', {'node': 'b', 'good_step': 4})] * 2,
    ['warn', 'replace_node'],
  ),
  'wrong results of nobody known': (
    [RUNNING] + [('wrong_result', {'good_step': 4})] * 3,
    ['warn'] * 3,
  ),
  'a replica is outvoted': (
    [sealed(5), ('corrupt_replica', {'node': 'b', 'good_step': 4})],
    ['replace_node'],
  ),
  'replicas differ, without a majority': (
    [sealed(5), ('corrupt_replica', {'good_step': 4})],
    ['restart'],
  ),
  'a slow rank': (
    [('slow_rank', {'node': 'b'})] * 10 + [('drained', {})],
    ['warn', 'checkpoint_and_drain', 'replace_node'],
  ),
  'the end': ([('done', {})], ['stop 0']),
  'a rule that only tells': ([ruled('x', 'warn', 'b')], ['warn']),
  'a rule that ignores': ([ruled('x', 'ignore', 'b')], []),
  'a rule that restarts': ([ruled('x', 'restart', 'b')], ['restart']),
  'a rule that rolls back': ([ruled('x', 'rollback', step=9)], ['rollback']),
  'a rule that stops': ([ruled('x', 'stop')], ['stop 75']),
}


@pytest.mark.parametrize('name', STORIES)
def test_story(name):
  story, expected = STORIES[name]
  # Close enough that a kill and the kernel's line about it belong together.
  assert done(story, apart_s=4.0) == expected


def test_killed_for_memory_is_no_strike():
  state, _ = tell([RUNNING, KILL_1, OOM_A], apart_s=4.0)
  assert not state.strikes and not state.quarantine
  state, _ = tell([RUNNING, KILL_1, OOM_A], apart_s=40.0)  # Another process.
  assert [node for node, _ in state.strikes] == ['a']


def test_spare_takes_the_ranks_of_the_lost_node():
  state, (_, action) = tell([RUNNING, ECC_B])
  assert action.node == 'b' and action.step is None and not action.delay_s
  assert state.nodes == ('a', 's', 'c', 'd')
  assert (state.spares, state.quarantine) == (('t',), ('b',))
  assert state.generation == 1 and not state.running


def test_three_nodes_lost_in_one_incident_count_once():
  story = [RUNNING, *(('agent_lost', {'node': n}) for n in 'abs')]
  state, actions = tell(story)
  assert len(state.restarts) == 1
  # The third has no spare, and may not be left out.
  assert [a.kind for a in actions[1:]] == [
    'replace_node',
    'replace_node',
    'stop',
  ]
  assert actions[-1].exit_code == 75 and actions[-1].node == 's'


@pytest.mark.parametrize(
  'counts, left',
  [((), None), ((1, 2), 2), ((3,), 3), ((3, 2), 3), ((5,), None)],
)
def test_without_a_spare_it_shrinks_to_an_allowed_size(counts, left):
  state, actions = tell([RUNNING, ECC_B], spares=(), node_counts=counts)
  if left is None:
    assert (actions[1].kind, actions[1].exit_code) == ('stop', 75)
  else:
    assert actions[1].kind == 'replace_node' and len(state.nodes) == left
    assert 'b' not in (*state.nodes, *state.spares)


def test_it_grows_again_with_the_next_generation():
  story = [RUNNING, ECC_B, ('node_ready', {'node': 'b'}), RUNNING, RAISE_1]
  state, _ = tell(story, spares=(), node_counts=(2,))
  assert set(state.nodes) == set(NODES) and not state.quarantine


def test_drain_needs_somebody_to_take_the_place():
  burst = ruled('ecc_burst', 'checkpoint_and_drain', 'b')
  assert done([RUNNING, burst], spares=()) == ['warn']


def test_budget_of_an_hour():
  # A seal in each generation: nothing but the number of incidents is wrong.
  def story(count):
    fault = [RUNNING, RAISE_1, sealed(0)]
    return [x for n in range(count) for x in (*fault[:2], sealed(n))]

  assert done(story(10)) == ['restart'] * 10
  assert done(story(11)) == ['restart'] * 10 + ['stop 75']
  assert done(story(40), apart_s=200.0) == ['restart'] * 40


def test_waits_grow_up_to_a_limit():
  story = [x for n in range(9) for x in (RUNNING, RAISE_1, sealed(n))]
  _, actions = tell(story, backoff_s=5.0)
  waits = [a.delay_s for a in actions if a.kind == 'restart']
  assert waits == [0, 0, 0, 1, 2, 4, 5, 5, 5]


HANGS = {
  'one has not entered the step': (dict(entered={3: 6}), ('b',)),
  'one is stopped': (dict(processes={6: 'T'}), ('d',)),
  'one waits for a device': (dict(processes={6: 'D'}), ('d',)),
  'one still reads data': (dict(phases={0: 'data'}), ('a',)),
  'one still compiles, one restores': (
    dict(phases={0: 'compile', 3: 'restore'}),
    ('b',),
  ),
  'who is behind explains who is stopped': (
    dict(entered={3: 6}, processes={6: 'T'}),
    ('b',),
  ),
  'two of one node': (dict(entered={2: 6, 3: 6}), ('b',)),
}


@pytest.mark.parametrize('name', HANGS)
def test_who_hangs_is_named_and_the_second_time_replaced(name):
  progress, culprits = HANGS[name]
  story = [RUNNING, hang(**progress), RUNNING, sealed(9), hang(**progress)]
  state, actions = tell(story)
  first, second = actions[1], actions[-1]
  assert (first.kind, first.node) == ('restart', *culprits)
  assert (second.kind, second.node) == ('replace_node', *culprits)
  assert state.quarantine == culprits


def test_pair_under_suspicion_goes_only_when_it_happens_again():
  pair = hang(entered={1: 6, 4: 6})  # Of nodes a and c.
  assert done([RUNNING, pair]) == ['restart']
  state, actions = tell([RUNNING, pair, RUNNING, pair])
  assert actions[-1].kind == 'replace_node'
  assert set(state.quarantine) == {'a', 'c'}
  # Only who was there both times is under suspicion.
  state, actions = tell([RUNNING, pair, RUNNING, hang(entered={1: 6, 7: 6})])
  assert state.quarantine == ('a',)
  assert done([RUNNING, pair, RUNNING, pair], spares=('s',)) == ['restart'] * 2


def test_nobody_is_evicted_where_all_wait():
  state, actions = tell([RUNNING, hang(), RUNNING, sealed(9), hang()])
  assert [a.kind for a in actions if a.kind != 'ignore'] == ['restart'] * 2
  assert not state.quarantine and not state.strikes
  assert actions[1].node is None


def test_rollback_goes_behind_the_last_good_step_and_skips_the_data():
  seals = [sealed(step) for step in (5, 10, 15)]
  bad = ('not_finite', {'step': 18, 'good_step': 12})
  state, actions = tell([*seals, bad])
  assert (actions[-1].step, actions[-1].steps) == (10, 8)
  assert state.skip == (10, 8) and state.sealed == (5, 10)
  again = ('not_finite', {'step': 13, 'good_step': 12})
  assert tell([*seals, bad, again])[0].skip == (10, 11)  # More of the data.
  state, actions = tell([*seals, bad, ('not_finite', {'step': 25})])
  assert (actions[-1].step, actions[-1].steps) == (5, 20)


def test_rollback_takes_a_checkpoint_that_is_still_there():
  kept = ('sealed', {'step': 30, 'seals': (20, 25, 30)})
  bad = ('not_finite', {'step': 33})
  state, actions = tell([sealed(5), kept, bad, ('not_finite', {'step': 34})])
  first, second = actions[-2:]
  assert (first.step, first.steps) == (30, 3)
  assert (second.step, second.steps) == (20, 14)  # The oldest.
  assert state.skip == (20, 14)
  gone = ('sealed', {'step': 30, 'seals': (25, 30)})
  state, _ = tell([kept, RAISE_1, gone])
  assert state.sealed == (25, 30) and not state.gained


def test_rollback_without_a_seal_begins_where_the_trainer_finds():
  _, (action,) = tell([('not_finite', {'step': 18})])
  assert (action.kind, action.step, action.steps) == ('rollback', None, 0)


def test_numerics_that_end_the_ranks_roll_back():
  story = [sealed(5), ended(0, dict.fromkeys(range(8), 4), good_step=6)]
  _, actions = tell(story)
  assert (actions[-1].kind, actions[-1].step, actions[-1].steps) == (
    'rollback',
    5,
    2,
  )


def test_seals_after_a_wrong_number_are_not_trusted():
  story = [
    sealed(5),
    sealed(10),
    ('corrupt_replica', dict(node='b', good_step=7)),
  ]
  state, actions = tell(story)
  assert actions[-1].step == 5 and state.sealed == (5,)


def test_decisions_do_not_change_their_arguments():
  state = state_lib.start(NODES)
  event = events.Event(time_s=1.0, kind='exit', progress=ranks({1: -9}))
  before = dataclasses.asdict(state)
  assert decide_lib.decide(state, event) == decide_lib.decide(state, event)
  assert dataclasses.asdict(state) == before


def test_every_kind_has_an_answer():
  state = state_lib.start(NODES, spares=('s',))
  for kind in events.KINDS:
    decide_lib.decide(
      state, events.Event(time_s=1.0, kind=kind, node='a', step=1)
    )


@pytest.mark.parametrize('seed', range(20))
def test_random_stories_keep_the_state_whole(seed):
  chance = random.Random(seed)
  names = (*NODES, 's', 't')
  state = state_lib.start(
    NODES, spares=('s', 't'), policy=state_lib.Policy(node_counts=(1, 3))
  )
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
      action=chance.choice(('', *typing.get_args(events.ActionKind))),
      source=chance.choice(('agent', 'kern', 'trainer')),
      progress=ranks(codes if chance.random() < 0.5 else {}),
    )
    if event.node is None and event.kind in OF_A_NODE:
      continue
    before = state
    state, action = decide_lib.decide(state, event)
    everybody = (*state.nodes, *state.spares, *state.quarantine)
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
