# SPDX-License-Identifier: Apache-2.0
"""The cause of an end or a hang, not those that waited for it."""

import pytest

from tests.support import stories
from zaya_jax.aegis.decide import blame, events

HANGS = {
  'one has not entered the step': (dict(entered={3: 6}), ('b',)),
  'one is stopped': (dict(processes={6: 'T'}), ('d',)),
  'one waits for a device': (dict(processes={6: 'D'}), ('d',)),
  'one still reads data': (dict(phases={0: 'data'}), ('a',)),
  'one still compiles, one restores': (
    dict(phases={0: 'compile', 3: 'restore'}),
    ('b',),
  ),
  'who is stopped explains who is behind': (
    dict(entered={3: 6}, processes={6: 'T'}),
    ('d',),
  ),
  'who is behind explains who waits for a device': (
    dict(entered={3: 6}, processes={6: 'D'}),
    ('b',),
  ),
  'two of one node': (dict(entered={2: 6, 3: 6}), ('b',)),
}


def ended(first, codes):
  """The rank whose end explains the others."""
  kind, fields = stories.ended(first, codes)
  return blame.ended(events.Event(time_s=0.0, kind=kind, **fields))


@pytest.mark.parametrize('name', HANGS)
def test_who_holds_up_the_others_is_named(name):
  progress, culprits = HANGS[name]
  assert blame.behind(stories.ranks(**progress)) == culprits


@pytest.mark.parametrize('phase', ['step', 'data'])
def test_all_are_named_where_none_stands_out(phase):
  phases = dict.fromkeys(range(8), phase)
  assert blame.behind(stories.ranks(phases=phases)) == stories.NODES


def test_ranks_that_ended_are_not_waited_for():
  progress = stories.ranks({0: -9, 1: 1}, entered={0: 3, 1: 3, 5: 6})
  assert blame.behind(progress) == ('c',)


@pytest.mark.parametrize(
  'codes, first, cause',
  [
    # A verdict, a signal, an exception, an abort, the loss of a peer.
    ({0: 75, 1: -6, 2: 1, 3: -9, 4: 3}, 0, 4),
    ({0: 75, 1: -6, 2: 1, 3: -9}, 0, 3),
    ({0: 75, 1: -6, 2: 1}, 0, 2),
    ({0: 75, 1: -6}, 0, 1),
    ({0: 75}, 3, 0),
    # Among equals the one that ended first, else the lowest rank.
    ({1: 1, 5: 1, 6: 1}, 5, 5),
    ({1: 1, 5: 1, 6: 1}, None, 1),
    ({0: -6, 1: 75, 6: -6}, 6, 6),
  ],
)
def test_end_that_explains_the_others(codes, first, cause):
  assert ended(first, codes).rank == cause


def test_nobody_has_ended():
  assert ended(None, {}) is None
  assert ended(0, {0: 0, 1: 0}) is None
