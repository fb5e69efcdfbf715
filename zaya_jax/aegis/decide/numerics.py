# SPDX-License-Identifier: Apache-2.0
"""Wrong numbers: a few rollbacks to a good checkpoint, then the end."""

from zaya_jax.aegis.decide import events, nodes, recovery
from zaya_jax.aegis.decide import state as state_lib
from zaya_jax.config import exit_codes

Event = events.Event
State = state_lib.State
Decision = recovery.Decision


def roll_back(state: State, event: Event) -> Decision:
  """Restores a checkpoint of `good_step` or before; skips the data since."""
  policy, step = state.policy, event.step or 0
  past = _recent(state.rollbacks, step, policy)
  reason = event.detail or 'numerics gave up'
  budget = f'rollback {len(past) + 1} of {policy.rollbacks}'
  if len(past) >= policy.rollbacks:
    why = f'{reason}, after {len(past)} rollbacks'
    return state, recovery.stop(why, code=exit_codes.NUMERICS)
  good = event.good_step
  if good is None:  # The cause may be older than the first refused step.
    good = step - policy.rollback_steps * len(past)
  state, target = recovery.seal_before(state, good)
  steps = 0 if target is None else max(0, step - target)
  before = state.skip[1] if state.skip[0] == target else 0
  state = state.but(
    rollbacks=(*past, step), spikes=(), skip=(target or 0, before + steps)
  )
  return recovery.begin(
    state,
    event,
    kind='rollback',
    free=True,
    step=target,
    steps=steps,
    reason=f'{reason}; {budget}',
  )


def spike(state: State, event: Event) -> Decision:
  """A step whose loss jumped was refused; several of them roll back."""
  step = event.step or 0
  past = _recent(state.spikes, step, state.policy)
  state = state.but(spikes=(*past, step))
  count, budget = len(state.spikes), state.policy.spikes
  if count < budget:
    why = f'{event.detail}; {count} jumps, {budget} roll back'
    return state, recovery.warn(event, why)
  return roll_back(state, event)


def wrong_result(state: State, event: Event) -> Decision:
  """A wrong result that did not repeat itself counts against the node."""
  if event.node is None:
    return state, recovery.warn(event)
  state, count = nodes.count_strike(state, event)
  budget = state.policy.strikes
  if count < budget:
    why = f'{event.detail}; fault {count} of {event.node}, {budget} replace it'
    return state, recovery.warn(event, why)
  return nodes.replace(state, event)


def corrupt(state: State, event: Event) -> Decision:
  """A rank holds other numbers than its replicas."""
  if event.node is not None:
    return nodes.replace(state, event)
  # Without a majority all go back to where they agreed.
  state, step = recovery.seal_before(state, event.good_step or 0)
  return recovery.begin(state, event, step=step, reason=event.detail)


def _recent(
  steps: tuple[int, ...], step: int, policy: state_lib.Policy
) -> tuple[int, ...]:
  return tuple(s for s in steps if s > step - policy.rollback_window)
