# SPDX-License-Identifier: Apache-2.0
"""The caps: of an hour, of all nodes, and what is many."""

import pytest

from zaya_jax.aegis.decide import breaker, events
from zaya_jax.aegis.decide import state as state_lib


def start(count, **policy):
  names = tuple(f'n{i}' for i in range(count))
  return state_lib.start(names, policy=state_lib.Policy(**policy))


@pytest.mark.parametrize(
  'count, share, most',
  [(1, 0.25, 0), (2, 0.25, 1), (4, 0.25, 1), (8, 0.25, 2), (132, 0.25, 33)]
  + [(8, 0.0, 1), (8, 1.0, 8)],
)
def test_share_of_all_nodes(count, share, most):
  assert breaker.most(start(count, condemn_share=share)) == most


def test_room_is_that_of_the_hour_and_of_the_share():
  state, seen = start(20), events.Event(time_s=1e9, kind='x')
  assert breaker.room(state, 1e9) == 2
  state, done = breaker.condemn(state, seen, ('n0', 'n1', 'n2'), 'why')
  assert done == ('n0', 'n1') == state.quarantined
  assert breaker.count(state, 1e9) == (
    '2 of 2 condemned this hour, 2 of 5 in quarantine'
  )
  assert breaker.room(state, 1e9 + 3600) == 0
  assert breaker.room(state, 1e9 + 3601) == 2
  assert breaker.room(start(20, condemn_per_hour=0), 1e9) == 0
  held = state_lib.Held(node='x')
  assert breaker.room(state.but(quarantine=(held,) * 5), 2e9) == 0


@pytest.mark.parametrize(
  'count, lost, many',
  [(128, 2, False), (128, 3, True), (4, 1, False), (4, 2, True), (1, 1, True)],
)
def test_what_is_many(count, lost, many):
  assert breaker.many(start(count), lost) == many


def test_pause_is_over_after_a_minute():
  state = start(2).but(paused_s=1e9)
  assert breaker.is_paused(state, 1e9 + 60)
  assert not breaker.is_paused(state, 1e9 + 61)
  assert not breaker.is_paused(start(2), 1e9)
