# SPDX-License-Identifier: Apache-2.0
"""Every kind of event has its action, and decisions are pure."""

import dataclasses

import pytest

from tests.support import stories, storms
from zaya_jax.aegis.decide import breaker, events, recovery
from zaya_jax.aegis.decide import decide as decide_lib
from zaya_jax.aegis.decide import state as state_lib

STORIES = {
  'a seal of an old step is no progress': (
    ['sealed 5', 'raised 1', 'raised 1', 'sealed 5', 'raised 1', 'raised 1'],
    ['restart'] * 3 + ['stop 93'],
  ),
  'what a trainer prints acts on no node': (
    ['running', stories.ruled('x', 'replace_node', 'b', source='trainer')],
    ['warn'],
  ),
  'what a trainer prints ends no run': (
    [
      ruled
      for ruled in (stories.ruled('save_failed', 'warn', source='trainer'),)
    ]
    * 4,
    ['warn'] * 4,
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


def test_nothing_is_lost_in_random_storms():
  assert storms.storms(range(1_500), 25) > 30_000


@pytest.mark.long
def test_nothing_is_lost_in_a_hundred_thousand_storms():
  seeds = range(10_000, 110_000)
  assert storms.storms(seeds, 25) > 2_000_000


def _forgets(monkeypatch):
  monkeypatch.setattr(state_lib, '_unexpired', lambda held, *_: tuple(held)[1:])


def _has_room(monkeypatch):
  monkeypatch.setattr(breaker, 'room', lambda *_: 99)


def _counts_no_hour(monkeypatch):
  monkeypatch.setattr(breaker, 'HOUR_S', 0.0)


def _never_together(monkeypatch):
  monkeypatch.setattr(breaker, 'many', lambda *_: False)


def _forgets_pauses(monkeypatch):
  monkeypatch.setattr(breaker, 'is_paused', lambda *_: False)


def _keeps_the_lost(monkeypatch):
  monkeypatch.setattr(recovery.state_lib, 'without', lambda state, _: state)


def _starts_nothing(monkeypatch):
  monkeypatch.setitem(
    decide_lib._KINDS, 'hang', lambda state, _: (state, recovery.IGNORE)
  )


def _lies(monkeypatch):
  monkeypatch.setitem(
    decide_lib._KINDS, 'not_finite', decide_lib._KINDS['done']
  )


def _believes_text(monkeypatch):
  handle = decide_lib._handle
  monkeypatch.setattr(
    decide_lib,
    '_handle',
    lambda state, event: handle(
      state, dataclasses.replace(event, source='agent')
    ),
  )


def _believes_agents(monkeypatch):
  handle = decide_lib._handle
  monkeypatch.setattr(
    decide_lib,
    '_handle',
    lambda state, event: handle(state, dataclasses.replace(event, by=None)),
  )


def _is_silent(monkeypatch):
  wait = recovery.wait
  monkeypatch.setattr(
    recovery,
    'wait',
    lambda *args: (wait(*args)[0], recovery.IGNORE),
  )


@pytest.mark.parametrize(
  'broken',
  [
    _forgets,
    _has_room,
    _counts_no_hour,
    _never_together,
    _forgets_pauses,
    _keeps_the_lost,
    _starts_nothing,
    _lies,
    _believes_text,
    _believes_agents,
    _is_silent,
  ],
)
def test_storms_find_what_is_broken(monkeypatch, broken):
  broken(monkeypatch)
  with pytest.raises(AssertionError, match='^storm'):
    storms.storms(range(1_500), 25)
