# SPDX-License-Identifier: Apache-2.0
"""What an agent watches on its node: logs and counters, by rules."""

from collections.abc import Iterable

from zaya_jax.aegis import events, matcher, rules, scrape, tail


class Watch:
  """Looks at the logs and the metrics of one node.

  Args:
    node: its name.
    found: the rules.
    logs: (source, path) of each log.
    metrics_url: of an endpoint; '' for none.
  """

  def __init__(
    self,
    node: str,
    found: Iterable[rules.Rule],
    *,
    logs: Iterable[tuple[events.Source, str]] = (),
    metrics_url: str = '',
  ):
    self._matcher = matcher.Matcher(found, node)
    self._tails = [(source, tail.Tail(path)) for source, path in logs]
    self._scraper = scrape.Scraper(metrics_url) if metrics_url else None

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
    return seen + self._matcher.due(time_s)

  def close(self) -> None:
    """Closes all files."""
    for _, log in self._tails:
      log.close()
    if self._scraper:
      self._scraper.close()
