# SPDX-License-Identifier: Apache-2.0
"""Counters of a metrics endpoint, as that of ROCm's exporter, that rise."""

import math
import queue
import re
import threading
import urllib.request

_EVERY_S = 10.0  # The exporter itself looks every 30 s.
_TIMEOUT_S = 5.0
_BYTES = 2**23
_SERIES = 20_000
_SAMPLE = re.compile(r'([a-zA-Z_:][\w:]*(?:\{.*\})?)\s+(\S+)(?:\s+-?\d+)?')


class Counters:
  """Remembers counters from one text to the next."""

  def __init__(self):
    self._last: dict[str, float] = {}

  def rises(self, text: str) -> list[tuple[str, int]]:
    """Counters with labels and by how much each has risen since the last text.

    What is new, or was set back, counts from here on.

    Args:
      text: in the format of Prometheus.
    """
    now = {}
    for line in text.splitlines():
      if (found := _SAMPLE.fullmatch(line)) and len(now) < _SERIES:
        try:
          value = float(found[2])
        except ValueError:
          continue
        if math.isfinite(value):
          now[found[1]] = value
    last, self._last = self._last, now
    return [
      (name, math.ceil(value - last[name]))
      for name, value in now.items()
      if value > last.get(name, value)
    ]


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
      except (OSError, ValueError) as error:
        self.failure = f'{self._url}: {error}'
      if self._end.wait(self._every_s):
        return
