# SPDX-License-Identifier: Apache-2.0
"""/metrics and /healthz of a supervisor: read only, on the loopback address."""

import functools
import threading
from collections.abc import Callable, Iterable
from typing import Any
from wsgiref import simple_server

import prometheus_client
from prometheus_client import exposition

from zaya_jax.aegis.decide import state as state_lib

State = state_lib.State

_LOOPBACK = '127.0.0.1'
_GAUGES: dict[str, Callable[[State], int]] = {
  'generation': lambda s: s.generation,
  'running': lambda s: s.running,
  'sealed_step': lambda s: max(s.sealed, default=0),
  'nodes': lambda s: len(s.nodes),
  'nodes_wanted': lambda s: s.size,
  'spares': lambda s: len(s.spares),
  'quarantined': lambda s: len(s.quarantine),
  'incidents_last_hour': lambda s: len(s.restarts),
  'fruitless_generations': lambda s: s.fruitless,
  'rollbacks': lambda s: len(s.rollbacks),
  'failed_saves': lambda s: s.failed_saves,
  'draining': lambda s: s.draining is not None,
}


class Server:
  """Answers GET requests until it is closed.

  Args:
    port: 0 for any; the attribute has the one that was taken.
    state: returns the present state of the run.

  Raises:
    OSError: if the port is taken.
  """

  def __init__(self, port: int, state: Callable[[], State]):
    registry = prometheus_client.CollectorRegistry()
    for name, read in _GAUGES.items():
      gauge = prometheus_client.Gauge(
        f'zaya_jax_{name}', name.replace('_', ' '), registry=registry
      )
      gauge.set_function(functools.partial(lambda read: read(state()), read))
    metrics = prometheus_client.make_wsgi_app(registry)

    def answer(request: dict[str, Any], start: Callable) -> Iterable[bytes]:
      path = request['PATH_INFO']
      if path == '/metrics' or request['REQUEST_METHOD'] != 'GET':
        return metrics(request, start)  # Which refuses other methods.
      status, text = '404 Not Found', b'not found\n'
      if path == '/healthz':
        status, text = '200 OK', b'ok\n' if state().running else b'starting\n'
      start(status, [('Content-Type', 'text/plain; charset=utf-8')])
      return [text]

    self._server = simple_server.make_server(
      _LOOPBACK, port, answer, exposition.ThreadingWSGIServer, _Handler
    )
    self.port = self._server.server_port
    threading.Thread(target=self._server.serve_forever, daemon=True).start()

  def close(self) -> None:
    """Stops listening."""
    self._server.shutdown()
    self._server.server_close()


class _Handler(simple_server.WSGIRequestHandler):
  timeout = 5.0  # A client that sends nothing keeps a thread no longer.

  def log_message(self, format: str, *args: object) -> None:
    """Logs nothing: a probe every few seconds is no news."""
