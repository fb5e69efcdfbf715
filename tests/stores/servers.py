# SPDX-License-Identifier: Apache-2.0
"""Servers of object stores on this machine, with the faults asked for."""

import contextlib
import functools
import http.server
import threading
import urllib.parse
from collections.abc import Iterator

from gcp_storage_emulator import server as gcs
from gcp_storage_emulator import storage
from moto import server as moto

from tests.stores import faults as faults_lib


@contextlib.contextmanager
def s3(faults: faults_lib.Faults) -> Iterator[dict[str, str]]:
  """Amazon's protocol; gives the environment of its clients."""
  server = moto.ThreadedMotoServer('127.0.0.1', 0, verbose=False)
  server.start()
  # What it calls for a request is nowhere to be given.
  answer = server._server.app

  def serve(environ, start):
    action = faults.action(environ['PATH_INFO'])
    connection = environ['werkzeug.socket']
    if action == faults_lib.DROP:
      faults_lib.hang_up(connection)
    content = answer(environ, start)
    return _half(content, connection) if action == faults_lib.CUT else content

  server._server.app = serve
  host, port = server.get_host_and_port()
  yield {
    'AWS_ENDPOINT_URL': f'http://{host}:{port}',
    'AWS_ACCESS_KEY_ID': 'key',
    'AWS_SECRET_ACCESS_KEY': 'secret',
    'AWS_DEFAULT_REGION': 'us-east-1',
    # Nobody but us tries again, and no cloud is asked for keys.
    'AWS_MAX_ATTEMPTS': '1',
    'AWS_EC2_METADATA_DISABLED': 'true',
  }
  server.stop()


@contextlib.contextmanager
def gs(faults: faults_lib.Faults) -> Iterator[dict[str, str]]:
  """Google's protocol; gives the environment of its clients."""

  class Handler(gcs.RequestHandler):
    def parse_request(self):
      if not super().parse_request():
        return False
      path = urllib.parse.unquote(urllib.parse.urlparse(self.path).path)
      action = faults.action(path)
      if action == faults_lib.DROP:
        faults_lib.hang_up(self.connection)
      if action == faults_lib.CUT:
        self.wfile = _Half(self.wfile, self.connection)
      return True

  class Server(http.server.HTTPServer):
    def handle_error(self, request, client_address):
      del request, client_address  # Of what was hung up.

  handler = functools.partial(Handler, storage.Storage(use_memory_fs=True))
  with Server(('127.0.0.1', 0), handler) as server:
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield {'STORAGE_EMULATOR_HOST': f'http://127.0.0.1:{server.server_port}'}
    server.shutdown()
    thread.join()


def _half(content, connection):
  whole = b''.join(content)
  yield whole[: len(whole) // 2]
  faults_lib.hang_up(connection)


class _Half:
  """A file to write to, that ends a connection with half of an answer."""

  def __init__(self, file, connection):
    self._file, self._connection = file, connection
    self.closed = False

  def write(self, content):
    self._file.write(content[: len(content) // 2])
    faults_lib.hang_up(self._connection)

  def flush(self):
    pass

  def close(self):
    self._file.close()
