# SPDX-License-Identifier: Apache-2.0
"""--serve: the page of runs over HTTP, to this machine alone.

It is written anew for every request. Nothing but the page and plotly.min.js is
given out, and only to who asks for this machine by its own name: a web page
elsewhere cannot point a name of its own here and read the answer.
"""

import contextlib
import http.server
from collections.abc import Sequence

from zaya_jax import config as config_lib
from zaya_jax.report import overview, page

_LOOPBACK = '127.0.0.1'


def serve(folders: Sequence[str], port: int) -> None:
  """Serves until Ctrl-C.

  Raises:
    UsageError: if a folder does not exist, or the port cannot be taken.
  """
  overview.read(folders)
  with make_server(folders, port) as server:
    print(
      f'http://{_LOOPBACK}:{server.server_port}/ (Ctrl-C ends it)', flush=True
    )
    with contextlib.suppress(KeyboardInterrupt):
      server.serve_forever()


def make_server(
  folders: Sequence[str], port: int
) -> http.server.ThreadingHTTPServer:
  """The server, listening on loopback; 0: on any free port."""

  class Handler(_Handler):
    runs = folders

  try:
    return http.server.ThreadingHTTPServer((_LOOPBACK, port), Handler)
  except OSError as error:
    raise config_lib.UsageError(
      f'--report.port={port} cannot be used: {error.strerror}; choose another, '
      'or 0 for any that is free.'
    ) from error


class _Handler(http.server.BaseHTTPRequestHandler):
  server: http.server.HTTPServer
  runs: Sequence[str] = ()

  def do_GET(self) -> None:
    names = {f'{name}:{self.server.server_port}' for name in _NAMES}
    if self.headers.get('Host') not in names:
      self.send_error(403, 'Only for this machine')
    elif self.path in ('/', '/report.html'):
      self._page()
    elif self.path == '/plotly.min.js' and (library := page.plotly()):
      self._send('text/javascript', library.read_bytes(), 'max-age=86400')
    else:
      self.send_error(404)

  def log_message(self, *unused) -> None:
    """Says nothing: the terminal has the address."""

  def _page(self) -> None:
    try:
      runs = overview.read(self.runs)
    except config_lib.UsageError as error:  # Deleted in the meantime.
      self.send_error(404, str(error))
      return
    html = page.render(overview.make(runs))
    self._send('text/html; charset=utf-8', html.encode('utf-8', 'replace'))

  def _send(self, kind: str, body: bytes, cache: str = 'no-store') -> None:
    self.send_response(200)
    self.send_header('Content-Type', kind)
    self.send_header('Content-Length', str(len(body)))
    self.send_header('Cache-Control', cache)
    self.send_header('X-Content-Type-Options', 'nosniff')
    self.end_headers()
    self.wfile.write(body)


_NAMES = (_LOOPBACK, 'localhost')
