# SPDX-License-Identifier: Apache-2.0
"""Incidents that wait to be sent: the first in full, the others counted."""

import collections
from typing import Any

from zaya_jax.aegis.decide import events

_KEPT = 10  # Warnings in full, and as many of what is worse.
_LONGEST = 1000  # Characters of a text.


class Batch:
  """Takes any number of incidents in bounded memory."""

  def __init__(self):
    self._kept: list[dict[str, Any]] = []
    self._more: collections.Counter[tuple[str, str]] = collections.Counter()

  def __bool__(self) -> bool:
    return bool(self._kept)

  def add(self, event: events.Event, action: events.Action) -> None:
    """Adds an incident."""
    self._add(
      {
        'time': event.time_s,
        'kind': event.kind,
        'action': action.kind,
        'node': event.node,
        'rank': event.rank,
        'step': event.step,
        'seen': event.detail[:_LONGEST],
        'reason': action.reason[:_LONGEST],
        'exit_code': action.exit_code,
      }
    )

  def extend(self, later: 'Batch') -> None:
    """Adds those of a batch that began later."""
    for row in later._kept:
      self._add(row)
    self._more.update(later._more)

  def message(self, run: str, host: str) -> dict[str, Any]:
    """What is sent: `text` for people, as chats expect it, and the facts.

    Args:
      run: its name.
      host: that of the supervisor.
    """
    lines = [_words(row) for row in self._kept]
    lines += [
      f'{count:,} more: {kind} -> {action.replace("_", " ")}'
      for (kind, action), count in self._more.most_common()
    ]
    return {
      'text': '\n'.join(f'zaya_jax {run}: {_escape(line)}' for line in lines),
      'run': run,
      'host': host,
      'incidents': self._kept,
      'more': [
        {'kind': kind, 'action': action, 'count': count}
        for (kind, action), count in self._more.most_common()
      ],
    }

  def _add(self, row: dict[str, Any]) -> None:
    is_warning = row['action'] == 'warn'
    alike = [x for x in self._kept if (x['action'] == 'warn') == is_warning]
    if len(alike) < _KEPT:
      self._kept.append(row)
    else:
      self._more[row['kind'], row['action']] += 1


def _words(row: dict[str, Any]) -> str:
  where = f' on {row["node"]}' if row['node'] else ''
  what = row['reason'] or row['seen'] or row['kind'] + where
  return f'{what} -> {row["action"].replace("_", " ")}'


def _escape(text: str) -> str:
  """Text that calls nobody and links nowhere: it may quote any log."""
  for plain, name in (('&', '&amp;'), ('<', '&lt;'), ('>', '&gt;')):
    text = text.replace(plain, name)
  return text
