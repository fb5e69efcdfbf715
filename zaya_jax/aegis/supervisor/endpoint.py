# SPDX-License-Identifier: Apache-2.0
"""/metrics and /healthz of a supervisor: read only, on the loopback address."""

import asyncio
import contextlib
import functools
import ipaddress
import socket
from collections.abc import Callable

import prometheus_client
from prometheus_client import exposition

from zaya_jax.aegis.decide import state as state_lib

State = state_lib.State

LOOPBACK = '127.0.0.1'
_TIMEOUT_S = 5.0  # A client that sends nothing keeps a connection no longer.
_CONNECTIONS = 32  # At a time; the oldest ends for a newer one.
_REQUEST = 8192  # Bytes.
_TEXT = 'text/plain; charset=utf-8'
_GAUGES: dict[str, Callable[[State], int]] = {
  'generation': lambda s: s.generation,
  'running': lambda s: s.running,
  'sealed_step': lambda s: max(s.sealed, default=0),
  'nodes': lambda s: len(s.nodes),
  'nodes_wanted': lambda s: s.size,
  'spares': lambda s: len(s.spares),
  'quarantined': lambda s: len(s.quarantine),
  'absent': lambda s: len(s.absent),
  'incidents_last_hour': lambda s: len(s.restarts),
  'fruitless_generations': lambda s: s.fruitless,
  'rollbacks': lambda s: len(s.rollbacks),
  'failed_saves': lambda s: s.failed_saves,
  'draining': lambda s: s.draining is not None,
  'alarm': lambda s: bool(s.alarm),
}


class Server:
  """Answers GET requests in the loop of the supervisor.

  Args:
    port: 0 for any; the attribute has the one that was taken.
    state: returns the present state of the run.
    unwell: returns why no generation is running; '' if one is.
    address: where it listens. Elsewhere than on the loopback address, requests
      may name any host.

  Raises:
    OSError: if the port is taken.
  """

  def __init__(
    self,
    port: int,
    state: Callable[[], State],
    unwell: Callable[[], str],
    address: str = LOOPBACK,
  ):
    self._registry = prometheus_client.CollectorRegistry()
    for name, read in _GAUGES.items():
      gauge = prometheus_client.Gauge(
        f'zaya_jax_{name}', name.replace('_', ' '), registry=self._registry
      )
      gauge.set_function(functools.partial(lambda read: read(state()), read))
    self._unwell = unwell
    self._is_local = address in (LOOPBACK, '::1', 'localhost')
    family = socket.AF_INET6 if ':' in address else socket.AF_INET
    self._socket = socket.create_server((address, port), family=family)
    self.port = self._socket.getsockname()[1]
    self._server: asyncio.Server | None = None
    self._open: dict[asyncio.StreamWriter, None] = {}

  async def start(self) -> None:
    """Begins to answer."""
    self._server = await asyncio.start_server(
      self._serve, sock=self._socket, limit=_REQUEST
    )

  def close(self) -> None:
    """Stops listening."""
    if self._server:
      self._server.close()
    for writer in self._open:
      writer.close()
    self._socket.close()

  async def _serve(
    self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
  ) -> None:
    """Answers one request."""
    if len(self._open) >= _CONNECTIONS:
      next(iter(self._open)).close()
    self._open[writer] = None
    wrong = (OSError, ValueError, TimeoutError)
    with contextlib.suppress(
      asyncio.IncompleteReadError, asyncio.LimitOverrunError, *wrong
    ):
      async with asyncio.timeout(_TIMEOUT_S):
        head = await reader.readuntil(b'\r\n\r\n')
        writer.write(self._answer(head.decode('latin-1')))
        await writer.drain()
    self._open.pop(writer, None)
    writer.close()

  def _answer(self, head: str) -> bytes:
    request, *lines = head.split('\r\n')
    fields = [line.partition(':') for line in lines if line]
    hosts = [x.strip() for name, _, x in fields if name.lower() == 'host']
    method, path, _ = request.split(' ')
    if self._is_local and not all(map(_is_local, hosts or [''])):
      return _response('403 Forbidden', b'this host is not served here\n')
    if method != 'GET':
      return _response('405 Method Not Allowed', b'only GET\n')
    if path == '/metrics':
      text = exposition.generate_latest(self._registry)
      return _response('200 OK', text, exposition.CONTENT_TYPE_LATEST)
    if path != '/healthz':
      return _response('404 Not Found', b'not found\n')
    if why := self._unwell():
      return _response('503 Service Unavailable', f'{why}\n'.encode())
    return _response('200 OK', b'ok\n')


def _response(status: str, text: bytes, kind: str = _TEXT) -> bytes:
  head = (
    f'HTTP/1.1 {status}\r\nContent-Type: {kind}\r\n'
    f'Content-Length: {len(text)}\r\nConnection: close\r\n\r\n'
  )
  return head.encode() + text


def _is_local(host: str) -> bool:
  """Whether a Host names this machine, as pages of others never do."""
  name = host.rpartition(':')[0] if host.rpartition(':')[2].isdigit() else host
  if name.lower() == 'localhost':
    return True
  with contextlib.suppress(ValueError):
    return ipaddress.ip_address(name.strip('[]')).is_loopback
  return False
