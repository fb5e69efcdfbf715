# SPDX-License-Identifier: Apache-2.0
"""Counters of a metrics endpoint, as that of ROCm's exporter, that rise."""

import http.client
import json
import math
import queue
import threading
import urllib.request

from prometheus_client import parser

_EVERY_S = 10.0  # The exporter itself looks every 30 s.
_TIMEOUT_S = 5.0
_BYTES = 2**23
_LINE = 4096  # Characters; longer lines are left out.
_SERIES = 20_000


class Counters:
  """Remembers counters from one text to the next."""

  def __init__(self):
    self._last: dict[str, float] = {}

  def rises(self, text: str) -> list[tuple[str, int]]:
    """Counters with labels and by how much each has risen since the last text.

    A counter that is new, or was reset, counts from here on.

    Args:
      text: in the format of Prometheus.
    """
    now = {}
    for line in text.splitlines():
      if len(now) < _SERIES and (found := _sample(line)):
        now[found[0]] = found[1]
    last, self._last = self._last, now
    return [
      (name, math.ceil(value - last[name]))
      for name, value in now.items()
      if value > last.get(name, value)
    ]


def _sample(line: str) -> tuple[str, float] | None:
  """A counter with its labels, and its value; None: the line has none.

  Lines are parsed one by one, so that a bad one hides no other, and comments
  are left out, as they make the parser rename counters to NAME_total.
  """
  if line.startswith('#') or len(line) > _LINE:
    return None
  try:
    families = list(parser.text_string_to_metric_families(line))
  except ValueError:
    return None
  if not families or not math.isfinite(families[0].samples[0].value):
    return None
  name, labels, value, *_ = families[0].samples[0]
  quoted = ','.join(
    f'{key}={json.dumps(label, ensure_ascii=False)}'
    for key, label in labels.items()
  )
  return f'{name}{{{quoted}}}' if labels else name, value


class Scraper:
  """Reads an endpoint now and then, in a thread: it may be slow to answer.

  Args:
    url: of http.
    every_s: seconds between two readings.

  Attributes:
    failure: why it cannot be read; '' if it can.
  """

  def __init__(self, url: str, *, every_s: float = _EVERY_S):
    self.failure = ''
    self._url, self._every_s = url, every_s
    self._found: queue.SimpleQueue[tuple[str, int]] = queue.SimpleQueue()
    self._end = threading.Event()
    # No proxy of the environment stands between a node and itself.
    self._open = urllib.request.build_opener(
      urllib.request.ProxyHandler({})
    ).open
    threading.Thread(target=self._run, daemon=True).start()

  def read(self) -> list[tuple[str, int]]:
    """As `Counters.rises`, of all readings since the last call."""
    return [self._found.get() for _ in range(self._found.qsize())]

  def close(self) -> None:
    """Reads no more."""
    self._end.set()

  def _run(self) -> None:
    counters = Counters()
    while True:
      try:
        with self._open(self._url, timeout=_TIMEOUT_S) as answer:
          text = answer.read(_BYTES).decode(errors='replace')
        for rise in counters.rises(text):
          self._found.put(rise)
        self.failure = ''
      except (OSError, ValueError, http.client.HTTPException) as error:
        self.failure = f'{self._url}: {error}'
      if self._end.wait(self._every_s):
        return
