# SPDX-License-Identifier: Apache-2.0
"""What a supervisor exports for Prometheus."""

import functools
import time
import typing
from collections.abc import Callable, Iterable

import prometheus_client

from zaya_jax.aegis.decide import events
from zaya_jax.aegis.decide import state as state_lib

State = state_lib.State

_GAUGES: dict[str, tuple[str, Callable[[State], float]]] = {
  'generation': ('Number of the generation.', lambda s: s.generation),
  'running': (
    '1 once the generation has finished a step.',
    lambda s: s.running,
  ),
  'alarm': ('1 if a person must look.', lambda s: bool(s.alarm)),
  'sealed_step': (
    'Step of the newest valid checkpoint.',
    lambda s: max(s.sealed, default=0),
  ),
  'nodes': ('Nodes of the generation.', lambda s: len(s.nodes)),
  'nodes_wanted': ('Nodes that the run should have.', lambda s: s.size),
  'spares': ('Healthy nodes that wait.', lambda s: len(s.spares)),
  'quarantined': ('Nodes in quarantine.', lambda s: len(s.quarantine)),
  'absent': ('Nodes that did not start or come back.', lambda s: len(s.absent)),
  'incidents_last_hour': (
    'Incidents that count in the budget of an hour.',
    lambda s: len(s.restarts),
  ),
  'fruitless_generations': (
    'Generations in a row that failed without a new checkpoint.',
    lambda s: s.fruitless,
  ),
  'rollbacks': ('Rollbacks that are remembered.', lambda s: len(s.rollbacks)),
  'failed_saves': ('Failed saves in a row.', lambda s: s.failed_saves),
  'draining': (
    '1 while ranks save before they end.',
    lambda s: s.draining is not None,
  ),
}


class Metrics:
  """Gauges of the present state, and counters of incidents.

  Args:
    state: returns the present state of the run.
    kinds: of the incidents that `take` is told of; each has a counter from
      the start, as Prometheus misses the first rise of one that appears.

  Attributes:
    registry: what is exported.
  """

  def __init__(
    self, state: Callable[[], State], kinds: Iterable[str] = events.KINDS
  ):
    self._looked = self._stepped = time.monotonic()
    self._step = 0
    # The times at which counters began are not worth as many lines.
    prometheus_client.disable_created_metrics()
    self.registry = prometheus_client.CollectorRegistry()
    for name, (words, read) in _GAUGES.items():
      read_now = functools.partial(lambda read: read(state()), read)
      self._gauge(name, words, read_now)
    words = 'The last step that all ranks finished.'
    self._gauge('step', words, lambda: self._step)
    words = 'Time since then, or since the start of the supervisor.'
    self._gauge(
      'step_age_seconds', words, lambda: time.monotonic() - self._stepped
    )
    words = 'Time since the supervisor last looked at its nodes.'
    self._gauge('look_age_seconds', words, lambda: self.look_age_s)
    self._incidents = prometheus_client.Counter(
      'zaya_jax_incidents',
      'Incidents since the start of the supervisor, by what was done.',
      ('kind', 'action'),
      registry=self.registry,
    )
    for kind in kinds:
      for action in typing.get_args(events.ActionKind):
        if action != 'ignore':
          self._incidents.labels(kind, action)

  @property
  def look_age_s(self) -> float:
    """Seconds since `finished` was last called, as each look does."""
    return time.monotonic() - self._looked

  def take(self, event: events.Event, action: events.Action) -> None:
    """Counts an incident, unless nothing was done about it."""
    if action.kind != 'ignore':
      self._incidents.labels(event.kind, action.kind).inc()

  def finished(self, step: int) -> None:
    """Notes the last step that all ranks have finished; 0 for none yet."""
    self._looked = time.monotonic()
    if step and step != self._step:
      self._step, self._stepped = step, self._looked

  def _gauge(self, name: str, words: str, read: Callable[[], float]) -> None:
    gauge = prometheus_client.Gauge(
      f'zaya_jax_{name}', words, registry=self.registry
    )
    gauge.set_function(read)
