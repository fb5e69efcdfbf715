# SPDX-License-Identifier: Apache-2.0
"""The logs and counters of a node that an agent watches, by rules."""

from collections.abc import Iterable, Sequence
from typing import Any, cast

from zaya_jax.aegis.decide import events
from zaya_jax.aegis.watch import matcher, rules, sampler, tail
from zaya_jax.config import fields


def parse(logs: Sequence[str]) -> list[tuple[events.Source, str]]:
  """Reads --aegis.logs: the source and the path of each.

  Raises:
    UsageError: if one is not SOURCE:PATH.
  """
  found = [tuple(log.split(':', 1)) for log in logs]
  for log, parts in zip(logs, found, strict=True):
    if parts[0] not in ('kern', 'journal') or not parts[-1] or len(parts) < 2:
      raise fields.UsageError(
        f'--aegis.logs={log} must be SOURCE:PATH, as kern:/dev/kmsg; sources '
        'are kern and journal.'
      )
  return cast(list[tuple[events.Source, str]], found)


def facts(event: events.Event) -> dict[str, Any]:
  """An event without its time, as the agent's clock means nothing elsewhere."""
  return {k: v for k, v in vars(event).items() if v and k != 'time_s'}


class Watch:
  """Watches the logs and the metrics of one node.

  Args:
    node: its name.
    found: the rules.
    logs: (source, path) of each log; '{node}' in a path is its name.
    metrics_url: of an endpoint; '' for none.
    telemetry: names of tools to ask.
  """

  def __init__(
    self,
    node: str,
    found: Iterable[rules.Rule],
    *,
    logs: Iterable[tuple[events.Source, str]] = (),
    metrics_url: str = '',
    telemetry: Iterable[str] = (),
  ):
    found = tuple(found)
    self._node, self._matcher = node, matcher.Matcher(found, node)
    self._tails, self._blind = [], []
    for source, path in logs:
      try:
        log = tail.Tail(path.replace('{node}', node))
        self._tails.append((source, log))
      except OSError as error:
        self._blind.append(f'{source}: {error}')
    self._scraper = None
    if metrics_url:
      from zaya_jax.aegis.watch import scrape  # A fifth of a second.

      self._scraper = scrape.Scraper(metrics_url)
    self._told: set[str] = set()
    asked = sampler.tools(telemetry)
    self._sampler = sampler.Sampler(node, found, asked)

  def poll(self, time_s: float) -> list[events.Event]:
    """The events since the last call; `time_s` never steps back."""
    seen = [
      event
      for source, log in self._tails
      for line in log.read()
      for event in self._matcher.match(source, line, time_s=time_s)
    ]
    for name, rise in self._scraper.read() if self._scraper else ():
      seen += self._matcher.match('metrics', name, time_s=time_s, count=rise)
    seen += self._matcher.due(time_s) + self._sampler.poll(time_s)
    return seen + self._unread(time_s)

  def _unread(self, time_s: float) -> list[events.Event]:
    """Reports once what cannot be read."""
    failures = [
      f'{source}: {log.failure}' for source, log in self._tails if log.failure
    ]
    if self._scraper and self._scraper.failure:
      failures.append(self._scraper.failure)
    blind, self._blind = self._blind, []
    for failure in failures:
      # Numbers and addresses differ from time to time.
      if (what := failure.split(': ')[0]) not in self._told:
        self._told.add(what)
        blind.append(failure)
    return [
      events.Event(
        time_s=time_s,
        kind='cannot_watch',
        node=self._node or None,
        action='warn',
        detail=why,
      )
      for why in blind
    ]

  def close(self) -> None:
    """Closes all files, and ends tools that are under way."""
    for _, log in self._tails:
      log.close()
    if self._scraper:
      self._scraper.close()
    self._sampler.close()
