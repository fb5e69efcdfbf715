# SPDX-License-Identifier: Apache-2.0
"""An HTTP server that takes what is posted, and fails or hangs when told."""

import contextlib
import http.server
import json
import queue
import threading

PATH = '/services/T0/SECRET'  # As in the addresses of webhooks.


class Receiver:
  """A server that answers with the codes it is given, then with 200."""

  def __init__(self):
    self.codes, self.got = [], queue.Queue()
    self.hold = threading.Event()  # Set: requests are answered.
    self.hold.set()
    outer = self

    class Handler(http.server.BaseHTTPRequestHandler):
      def do_POST(self):
        body = self.rfile.read(int(self.headers['Content-Length']))
        outer.got.put((self.path, json.loads(body)))
        outer.hold.wait(60)
        with contextlib.suppress(OSError):  # The client has gone.
          self.send_response(outer.codes.pop(0) if outer.codes else 200)
          self.send_header('Location', '/elsewhere')
          self.end_headers()

      def log_message(self, *args):
        pass

    self._server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Handler)
    self._server.daemon_threads = True
    self.url = f'http://127.0.0.1:{self._server.server_port}{PATH}'
    threading.Thread(
      target=self._server.serve_forever, args=(0.01,), daemon=True
    ).start()

  def next(self):
    """The next message; waits for it."""
    return self.got.get(timeout=60)[1]

  def close(self):
    """Ends it, and what it holds."""
    self.hold.set()
    self._server.shutdown()
    self._server.server_close()
