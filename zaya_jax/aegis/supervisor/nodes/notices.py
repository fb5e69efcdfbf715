# SPDX-License-Identifier: Apache-2.0
"""What an agent says of its node's logs and counters, as events.

An agent is believed about its own node, and about nothing that a supervisor
sees by itself: it cannot say that the run is done.
"""

from typing import Any

from pipelines import typed_json
from zaya_jax.aegis.decide import events

_SOURCES = ('kern', 'journal', 'metrics')
_OWN = ('cannot_watch',)  # What agents say without a line of a log.
_FIELDS = ('kind', 'detail', 'source', 'action', 'step', 'rank')


def event(
  node: str, facts: dict[str, Any], time_s: float
) -> events.Event | None:
  """The event that an agent reports.

  Args:
    node: of the agent.
    facts: its words.
    time_s: when they came, by the supervisor's clock.

  Returns:
    None if they are no notice.
  """
  told = {name: facts[name] for name in _FIELDS if name in facts}
  told |= {'node': node, 'by': node, 'time_s': time_s}
  try:
    found = typed_json.build(events.Event, told)
  except (LookupError, TypeError, ValueError):
    return None
  is_own = found.kind in _OWN and found.source == 'agent'
  of_line = found.source in _SOURCES and (
    found.kind not in events.KINDS or found.kind in events.OF_LINES
  )
  return found if is_own or of_line else None
