# SPDX-License-Identifier: Apache-2.0
"""/metrics and /healthz of a supervisor: read only, on this machine only."""

import http.server
import threading
from collections.abc import Callable

from zaya_jax.aegis.decide import state as state_lib

_LOOPBACK = '127.0.0.1'
_PLAIN = 'text/plain; version=0.0.4; charset=utf-8'


class Server:
  """Answers GET requests until it is closed.

  Args:
    port: 0 for any.
    state: gives the present state of the run.

  Attributes:
    port: where it listens.

  Raises:
    OSError: if the port is taken.
  """

  def __init__(self, port: int, state: Callable[[], state_lib.State]):
    class Handler(http.server.BaseHTTPRequestHandler):
      timeout = 5.0
      server_version, sys_version = 'zaya_jax', ''

      def do_GET(self) -> None:  # noqa: N802
        answer = answers(self.path, state())
        code, text = (200, answer) if answer else (404, 'not found\n')
        body = text.encode()
        self.send_response(code)
        self.send_header('Content-Type', _PLAIN)
        self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)

      def log_message(self, format: str, *args: object) -> None:
        del format, args  # A probe every few seconds is no news.

    self._server = http.server.ThreadingHTTPServer((_LOOPBACK, port), Handler)
    self.port = self._server.server_address[1]
    threading.Thread(target=self._server.serve_forever, daemon=True).start()

  def close(self) -> None:
    """Stops to listen."""
    self._server.shutdown()
    self._server.server_close()


def answers(path: str, state: state_lib.State) -> str:
  """The text at a path; '' where there is none."""
  if path == '/healthz':
    return 'ok\n' if state.running else 'starting\n'
  if path != '/metrics':
    return ''
  values = {
    'generation': state.generation,
    'running': int(state.running),
    'sealed_step': max(state.sealed, default=0),
    'nodes': len(state.nodes),
    'nodes_wanted': state.size,
    'spares': len(state.spares),
    'quarantined': len(state.quarantine),
    'incidents_last_hour': len(state.restarts),
    'fruitless_generations': state.fruitless,
    'rollbacks': len(state.rollbacks),
    'failed_saves': state.failed_saves,
    'draining': int(state.draining is not None),
  }
  return ''.join(
    f'# TYPE zaya_jax_{name} gauge\nzaya_jax_{name} {value}\n'
    for name, value in values.items()
  )
