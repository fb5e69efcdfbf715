# SPDX-License-Identifier: Apache-2.0
"""Counters of a metrics endpoint, as that of ROCm's exporter, that rise."""

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
    """Counters with labels and by how much each has risen since it was read.

    A counter that is new, or was reset, counts from here on. One that a text
    leaves out, as it was cut, is compared with what it was before.

    Args:
      text: in the format of Prometheus.

    Raises:
      ValueError: if there is no counter in it; the next text is compared with
        the one before.
    """
    now: dict[str, float] = {}
    whole, _, _ = text.rpartition('\n')  # A line without its end may be cut.
    for line in whole.splitlines():
      if len(now) < _SERIES and (found := _sample(line)):
        now[found[0]] = found[1]
    if not now:
      raise ValueError('there are no metrics in the answer')
    last = self._last
    gone = [name for name in last if name not in now][: _SERIES - len(now)]
    self._last = now | {name: last[name] for name in gone}
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
      # Whatever it is: a thread that ends here would be blind in silence.
      except Exception as error:
        self.failure = f'{self._url}: {error or type(error).__name__}'
      if self._end.wait(self._every_s):
        return
