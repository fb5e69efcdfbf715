# SPDX-License-Identifier: Apache-2.0
"""How many nodes may be condemned: whoever condemns many is wrong itself."""

from zaya_jax.aegis.decide import events
from zaya_jax.aegis.decide import state as state_lib

HOUR_S = 3600.0
_PAUSE_S = 60.0  # After which a pause explains nothing any more.


def most(state: state_lib.State) -> int:
  """Nodes that may be in quarantine at a time."""
  names = {*state.nodes, *state.spares, *state.quarantined, *state.absent}
  total = len(names)
  # Where there is one node, nothing is gained without it.
  return max(int(total > 1), int(state.policy.condemn_share * total))


def room(state: state_lib.State, time_s: float) -> int:
  """Nodes that may still be condemned now."""
  past = state_lib.recent(state.condemned, time_s, HOUR_S)
  return max(
    0,
    min(
      state.policy.condemn_per_hour - len(past),
      most(state) - len(state.quarantine),
    ),
  )


def many(state: state_lib.State, count: int) -> bool:
  """Whether so many nodes at once have one cause, which is none of them."""
  return count > min(state.policy.evict_at_most, most(state))


def condemn(
  state: state_lib.State,
  event: events.Event,
  nodes: tuple[str, ...],
  reason: str,
) -> tuple[state_lib.State, tuple[str, ...]]:
  """Puts nodes into quarantine, as many as may be; also returns which.

  They are still among `nodes` or `spares`, from where the caller takes them.
  """
  until_s = event.time_s + state.policy.quarantine_s
  nodes = nodes[: room(state, event.time_s)]
  held = tuple(
    state_lib.Held(
      node=node, reason=reason, since_s=event.time_s, until_s=until_s
    )
    for node in nodes
  )
  past = state_lib.recent(state.condemned, event.time_s, HOUR_S)
  now = tuple((node, event.time_s) for node in nodes)
  return state.but(
    quarantine=(*state.quarantine, *held), condemned=(*past, *now)
  ), nodes


def count(state: state_lib.State, time_s: float) -> str:
  """How much of the budgets is used up, for people."""
  past = state_lib.recent(state.condemned, time_s, HOUR_S)
  return (
    f'{len(past)} of {state.policy.condemn_per_hour} condemned this hour, '
    f'{len(state.quarantine)} of {most(state)} in quarantine'
  )


def is_paused(state: state_lib.State, time_s: float) -> bool:
  """Whether the supervisor has just not run: then nobody else is at fault."""
  return state.paused_s is not None and abs(time_s - state.paused_s) <= _PAUSE_S
