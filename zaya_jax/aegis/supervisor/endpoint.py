# SPDX-License-Identifier: Apache-2.0
"""/metrics and /healthz of a supervisor: read only, bounded, no passwords."""

import functools
import ipaddress
import socket
import threading
import time
import typing
from collections.abc import Callable, Iterable
from typing import Any
from wsgiref import simple_server

import prometheus_client
from prometheus_client import exposition

from zaya_jax.aegis.decide import events
from zaya_jax.aegis.decide import state as state_lib

State = state_lib.State

LOOPBACK = '127.0.0.1'
_CONNECTIONS = 32  # At a time; more are closed at once.
_NAMES = ('localhost', 'localhost.localdomain')
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


def exposes(bind: str, port: int) -> str:
  """A sentence for people if others than this machine reach the address."""
  if _is_loopback(bind):
    return ''
  return (
    f'--aegis.bind={bind}: whoever reaches port {port} of this machine reads '
    'the metrics, which have no password and no TLS; let only Prometheus '
    'through (a firewall, a NetworkPolicy)'
  )


class Server:
  """Answers GET requests until it is closed.

  Args:
    port: 0 for any; the attribute has the one that was taken.
    state: returns the present state of the run.
    bind: the address; '0.0.0.0' or '::' for all of this machine.
    kinds: of the incidents that `count` is told of; each has a counter from
      the start, as Prometheus misses the first rise of one that appears.

  Raises:
    OSError: if the port is taken, or the address is not of this machine.
  """

  def __init__(
    self,
    port: int,
    state: Callable[[], State],
    *,
    bind: str = LOOPBACK,
    kinds: Iterable[str] = events.KINDS,
  ):
    self._started = self._stepped = time.monotonic()
    self._step = 0
    # The times at which counters began are not worth as many lines.
    prometheus_client.disable_created_metrics()
    registry = self._registry(state, kinds)
    self._server = simple_server.make_server(
      bind,
      port,
      functools.partial(_answer, registry, state, _is_loopback(bind)),
      _Server6 if ':' in bind else _Server,
      _Handler,
    )
    self.port = self._server.server_port
    threading.Thread(target=self._server.serve_forever, daemon=True).start()

  def count(self, event: events.Event, action: events.Action) -> None:
    """Counts an incident, unless nothing was done about it."""
    if action.kind != 'ignore':
      self._incidents.labels(event.kind, action.kind).inc()

  def finished(self, step: int) -> None:
    """Notes the last step that all ranks have finished; 0 for none yet."""
    if step and step != self._step:
      self._step, self._stepped = step, time.monotonic()

  def close(self) -> None:
    """Stops listening."""
    self._server.shutdown()
    self._server.server_close()

  def _registry(self, state, kinds) -> prometheus_client.CollectorRegistry:
    registry = prometheus_client.CollectorRegistry()

    def gauge(name: str, words: str, read: Callable[[], float]) -> None:
      prometheus_client.Gauge(
        f'zaya_jax_{name}', words, registry=registry
      ).set_function(read)

    for name, (words, read) in _GAUGES.items():
      gauge(name, words, functools.partial(lambda read: read(state()), read))
    gauge('step', 'The last step that all ranks finished.', lambda: self._step)
    gauge(
      'step_age_seconds',
      'Time since then, or since the start of the supervisor.',
      lambda: time.monotonic() - self._stepped,
    )
    self._incidents = prometheus_client.Counter(
      'zaya_jax_incidents',
      'Incidents since the start of the supervisor, by what was done.',
      ('kind', 'action'),
      registry=registry,
    )
    for kind in kinds:
      for action in typing.get_args(events.ActionKind):
        if action != 'ignore':
          self._incidents.labels(kind, action)
    return registry


def _answer(
  registry: prometheus_client.CollectorRegistry,
  state: Callable[[], State],
  is_local: bool,
  request: dict[str, Any],
  start: Callable,
) -> Iterable[bytes]:
  """The application of WSGI."""
  if is_local and not _names_loopback(request.get('HTTP_HOST', '')):
    # A page in a browser here, whose name leads here, must not read it.
    return _text(start, '421 Misdirected Request', 'not this host')
  path = request['PATH_INFO']
  if path == '/metrics' or request['REQUEST_METHOD'] != 'GET':
    # Which refuses other methods.
    return prometheus_client.make_wsgi_app(registry)(request, start)
  if path != '/healthz':
    return _text(start, '404 Not Found', 'not found')
  why = _unhealthy(state())
  return _text(
    start, '503 Service Unavailable' if why else '200 OK', why or 'ok'
  )


def _unhealthy(state: State) -> str:
  """Why the run does not progress; '' if it does."""
  if state.alarm or state.running:
    return state.alarm
  return f'generation {state.generation} has finished no step yet'


def _text(start: Callable, status: str, text: str) -> Iterable[bytes]:
  start(status, [('Content-Type', 'text/plain; charset=utf-8')])
  return [f'{text}\n'.encode()]


def _is_loopback(address: str) -> bool:
  try:
    return ipaddress.ip_address(address).is_loopback
  except ValueError:
    return address in _NAMES


def _names_loopback(host: str) -> bool:
  """Whether the Host of a request, with or without a port, is this machine."""
  if host.startswith('['):
    return _is_loopback(host[1:].partition(']')[0])
  return _is_loopback(host.partition(':')[0].lower())


class _Server(exposition.ThreadingWSGIServer):
  def __init__(self, *args, **kwargs):
    self._free = threading.BoundedSemaphore(_CONNECTIONS)
    super().__init__(*args, **kwargs)

  def process_request(self, request, client_address):
    """Starts a thread, unless there are enough."""
    if self._free.acquire(blocking=False):
      super().process_request(request, client_address)
    else:
      self.shutdown_request(request)

  def process_request_thread(self, request, client_address):
    """Answers, and makes room for the next."""
    try:
      super().process_request_thread(request, client_address)
    finally:
      self._free.release()

  def handle_error(self, request, client_address):
    """Says nothing: a client that goes away is no news."""


class _Server6(_Server):
  address_family = socket.AF_INET6


class _Handler(simple_server.WSGIRequestHandler):
  timeout = 5.0  # A client that sends nothing keeps a thread no longer.

  def log_message(self, format: str, *args: object) -> None:
    """Logs nothing: a probe every few seconds is no news."""
