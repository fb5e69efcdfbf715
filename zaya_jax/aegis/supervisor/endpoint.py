# SPDX-License-Identifier: Apache-2.0
"""/metrics and /healthz of a supervisor: read only, bounded, no passwords."""

import functools
import socket
import threading
from collections.abc import Callable, Iterable
from typing import Any
from wsgiref import simple_server

import prometheus_client
from prometheus_client import exposition

from zaya_jax import config as config_lib
from zaya_jax.config.checks import loopback

LOOPBACK = '127.0.0.1'
_CONNECTIONS = 32  # At a time; more are closed at once.


def exposes(bind: str, port: int) -> str:
  """A sentence for people if others than this machine reach the address."""
  if loopback.is_address(bind):
    return ''
  return (
    f'--aegis.bind={bind}: whoever reaches port {port} of this machine reads '
    'the metrics, which have no password and no TLS; let only Prometheus '
    'through (a firewall, a NetworkPolicy)'
  )


def opened(
  flag: str,
  port: int,
  bind: str,
  registry: prometheus_client.CollectorRegistry,
  unwell: Callable[[], str] = lambda: '',
) -> 'Server':
  """A server, by the flag that has its port.

  Raises:
    UsageError: if the port is taken, or the address is not of this machine.
  """
  try:
    return Server(port, registry, unwell, bind)
  except OSError as error:
    raise config_lib.UsageError(
      f'--{flag}={port} cannot be opened on --aegis.bind={bind} '
      f'({error.strerror}); choose others, or no port (0).'
    ) from error


class Server:
  """Takes the port at once, and answers GET requests once it has started.

  Args:
    port: 0 for any; the attribute has the one that was taken.
    registry: what /metrics has.
    unwell: returns why no generation is running; '' if one is.
    bind: the address; '0.0.0.0' or '::' for all of this machine.

  Raises:
    OSError: if the port is taken, or the address is not of this machine.
  """

  def __init__(
    self,
    port: int,
    registry: prometheus_client.CollectorRegistry,
    unwell: Callable[[], str],
    bind: str = LOOPBACK,
  ):
    self._server = simple_server.make_server(
      bind,
      port,
      functools.partial(_answer, registry, unwell, loopback.is_address(bind)),
      _Server6 if ':' in bind else _Server,
      _Handler,
    )
    self.port = self._server.server_port
    self._thread: threading.Thread | None = None

  def start(self) -> None:
    """Begins to answer; who has asked before waits until then."""
    self._thread = threading.Thread(
      target=self._server.serve_forever, daemon=True
    )
    self._thread.start()

  def close(self) -> None:
    """Stops listening."""
    if self._thread:
      self._server.shutdown()
    self._server.server_close()


def _answer(
  registry: prometheus_client.CollectorRegistry,
  unwell: Callable[[], str],
  is_local: bool,
  request: dict[str, Any],
  start: Callable,
) -> Iterable[bytes]:
  """The application of WSGI."""
  if is_local and not loopback.names(request.get('HTTP_HOST', '')):
    # A page in a browser here, whose name leads here, must not read it.
    return _text(start, '421 Misdirected Request', 'not this host')
  path = request['PATH_INFO']
  if path == '/metrics' or request['REQUEST_METHOD'] != 'GET':
    # Which refuses other methods.
    return prometheus_client.make_wsgi_app(registry)(request, start)
  if path != '/healthz':
    return _text(start, '404 Not Found', 'not found')
  if why := unwell():
    return _text(start, '503 Service Unavailable', why)
  return _text(start, '200 OK', 'ok')


def _text(start: Callable, status: str, text: str) -> Iterable[bytes]:
  start(status, [('Content-Type', 'text/plain; charset=utf-8')])
  return [f'{text}\n'.encode()]


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
