# SPDX-License-Identifier: Apache-2.0
"""What /metrics has."""

import time

import prometheus_client

from zaya_jax.inference.serve import engine as engine_lib

_SECONDS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300)


class Meters:
  """Counts of one server.

  Args:
    engine: whose slots and queue are shown.
    slots: how many there are.
  """

  def __init__(self, engine: engine_lib.Engine, slots: int):
    self.registry = prometheus_client.CollectorRegistry()
    counter = lambda name, what, labels=(): prometheus_client.Counter(
      f'zaya_serve_{name}', what, labels, registry=self.registry
    )
    seconds = lambda name, what: prometheus_client.Histogram(
      f'zaya_serve_{name}_seconds',
      what,
      buckets=_SECONDS,
      registry=self.registry,
    )
    gauge = lambda name, what: prometheus_client.Gauge(
      f'zaya_serve_{name}', what, registry=self.registry
    )
    self._requests = counter(
      'requests', 'Requests that were answered.', ('path', 'status')
    )
    self._tokens = counter('tokens', 'Tokens, by kind.', ('kind',))
    self._hits = counter(
      'prefix_hits', 'Texts whose prompt began as one before.'
    )
    self._saved = counter(
      'prefix_tokens', 'Tokens of prompts that were not read again.'
    )
    self._cancelled = counter('cancelled', 'Requests whose client went away.')
    self._first = seconds('first_token', 'From a request to its first token.')
    self._whole = seconds('request', 'From a request to the end of its answer.')
    gauge('waiting', 'Texts that wait for a slot.').set_function(
      lambda: engine.waiting
    )
    gauge('busy', 'Slots with a text.').set_function(lambda: engine.busy)
    gauge('slots', 'Slots.').set(slots)

  def refused(self, path: str, status: int) -> None:
    """Counts a request that is not worked on."""
    self._requests.labels(path, status).inc()

  def watch(self, path: str, prompt: int) -> 'Watch':
    """Counts a request of so many tokens from now on."""
    self._tokens.labels('prompt').inc(prompt)
    return Watch(self, path)


class Watch:
  """The times of one request."""

  def __init__(self, meters: Meters, path: str):
    self._meters, self._path = meters, path
    self._begin = time.perf_counter()
    self._is_first = True

  def tokens(self, count: int) -> None:
    """Some more tokens were made."""
    if count and self._is_first:
      self._is_first = False
      self._meters._first.observe(time.perf_counter() - self._begin)
    self._meters._tokens.labels('generated').inc(count)

  def cached(self, count: int) -> None:
    """So many tokens of the prompt of a text were not read again."""
    self._meters._hits.inc(count > 0)
    self._meters._saved.inc(count)

  def end(self, status: int) -> None:
    """The answer has been given."""
    self._meters._whole.observe(time.perf_counter() - self._begin)
    self._meters._requests.labels(self._path, status).inc()

  def cancelled(self) -> None:
    """The client has gone."""
    self._meters._cancelled.inc()
