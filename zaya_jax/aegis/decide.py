# SPDX-License-Identifier: Apache-2.0
"""What to do about an event: a pure function, without clock or file."""

import dataclasses

from zaya_jax.aegis import events
from zaya_jax.aegis import state as state_lib

Action = events.Action
Event = events.Event
State = state_lib.State


def decide(state: State, event: Event) -> tuple[State, Action]:
  """Decides what to do.

  Args:
    state: what is remembered; after `replace_node`, `restart` and `rollback`
      its `generation` and `nodes` are those of the next generation.
    event: what was seen.

  Returns:
    The state to remember, and what to do.
  """
  if event.kind == 'sealed':
    state = dataclasses.replace(
      state, sealed=(*state.sealed, event.step)[-8:], fruitless=0
    )
    return state, Action(kind='ignore')
  if event.kind == 'done':
    return state, Action(kind='stop', exit_code=0, reason='the run is complete')
  if event.kind == 'stop_requested':
    return state, Action(
      kind='checkpoint_and_drain', exit_code=75, reason=event.detail
    )
  if event.kind == 'drained':
    return state, Action(kind='stop', exit_code=75, reason='all have saved')
  if event.kind in ('exit', 'hang', 'agent_lost'):
    state = dataclasses.replace(state, generation=state.generation + 1)
    return state, Action(kind='restart', reason=event.detail)
  return state, Action(kind='ignore')
