# SPDX-License-Identifier: Apache-2.0
"""Turns lines and counters of one node into events, as rules say.

The clock is the caller's, and memory is bounded whatever the lines are.
"""

import collections
import dataclasses
import json
import re
from collections.abc import Iterable

from zaya_jax.aegis.decide import events
from zaya_jax.aegis.watch import rules as rules_lib

_DETAIL = 500  # Characters of a line that people are shown.
_KEYS = 256  # Cards, GPUs or counters of one rule that are told apart.
_PER_MINUTE = 10  # Events of one rule.
# Of /dev/kmsg: priority, number, microseconds, flags; message. Priority is
# 8 times the facility plus the level, and only the kernel has facility 0.
_KMSG = re.compile(r'(\d+),\d+,\d+,[^;]*;(.*)', re.DOTALL)


def understand(
  source: events.Source, line: str
) -> tuple[events.Source, str] | None:
  """Who says what in a line; None if the line cannot be believed.

  Args:
    source: 'kern' for records of /dev/kmsg, to which programs can write, too;
      'journal' for lines of `journalctl --output=json`, which has lines of the
      kernel as well, and where fields that begin with '_' cannot be forged;
      lines of other sources are taken as they are.
    line: as it was read.

  Returns:
    The source that rules name, and the text; for a journal, with its unit.
  """
  if source == 'kern':
    found = _KMSG.fullmatch(line)
    return (source, found[2]) if found and int(found[1]) < 8 else None
  if source != 'journal':
    return source, line
  try:
    entry = json.loads(line)
  except (ValueError, RecursionError):
    return None
  if not isinstance(entry, dict) or not isinstance(entry.get('MESSAGE'), str):
    return None
  if entry.get('_TRANSPORT') == 'kernel':
    return 'kern', entry['MESSAGE']
  return source, f'{entry.get("_SYSTEMD_UNIT")}: {entry["MESSAGE"]}'


@dataclasses.dataclass
class _Memory:
  """What one rule remembers of one card, GPU or counter."""

  times: list[float] = dataclasses.field(default_factory=list)
  quiet_until: float = float('-inf')
  due_at: float | None = None  # When the grace is over.
  detail: str = ''


class Matcher:
  """The rules of one node, and what they remember."""

  def __init__(self, rules: Iterable[rules_lib.Rule], node: str):
    self._rules, self._node = tuple(rules), node
    self._memories = {rule.name: {} for rule in self._rules}
    self._told = {
      rule.name: collections.deque(maxlen=_PER_MINUTE) for rule in self._rules
    }

  def match(
    self, source: events.Source, line: str, *, time_s: float, count: int = 1
  ) -> list[events.Event]:
    """The events of a line, mostly none.

    Args:
      source: where it was read.
      line: of text; for 'metrics', the name of a counter that has risen.
      time_s: by a clock that does not step back.
      count: by how much the counter has risen.
    """
    understood = understand(source, line)
    if understood is None:
      return []
    (source, text), found = understood, []
    for rule in self._rules:
      if rule.source != source:
        continue
      if rule.clear and (match := rule.clear.search(text)):
        self._memory(rule, match).due_at = None
      if match := rule.find(text):
        memory = self._memory(rule, match)
        memory.detail = text.encode('unicode_escape').decode()[:_DETAIL]
        found += self._count(rule, memory, count, time_s)
    return found

  def due(self, time_s: float) -> list[events.Event]:
    """The events that nothing has cleared within their grace."""
    return [
      event
      for rule in self._rules
      if rule.grace_s
      for memory in self._memories[rule.name].values()
      if memory.due_at is not None and memory.due_at <= time_s
      for event in self._tell(rule, memory, time_s)
    ]

  def _memory(self, rule: rules_lib.Rule, match: re.Match) -> _Memory:
    key = match.groupdict().get('who') or ''
    memories = self._memories[rule.name]
    if key not in memories and len(memories) >= _KEYS:
      del memories[next(iter(memories))]  # The oldest.
    return memories.setdefault(key, _Memory())

  def _count(self, rule, memory, count, time_s) -> list[events.Event]:
    if rule.grace_s:
      if memory.due_at is None:
        memory.due_at = time_s + rule.grace_s
      return []
    oldest = time_s - rule.within_s
    times = [t for t in memory.times if t >= oldest]
    memory.times = (times + [time_s] * min(count, rule.count))[-rule.count :]
    if len(memory.times) < rule.count:
      return []
    return self._tell(rule, memory, time_s)

  def _tell(self, rule, memory, time_s) -> list[events.Event]:
    memory.due_at, memory.times = None, []
    told = self._told[rule.name]
    if time_s < memory.quiet_until or (
      len(told) == _PER_MINUTE and time_s - told[0] < 60.0
    ):
      return []
    memory.quiet_until = time_s + rule.debounce_s
    told.append(time_s)
    return [
      events.Event(
        time_s=time_s,
        kind=rule.name,
        node=None if rule.scope == 'job' else self._node,
        source=rule.source,
        action=rule.action,
        detail=memory.detail,
      )
    ]
