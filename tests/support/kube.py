# SPDX-License-Identifier: Apache-2.0
"""An API server with Leases and ConfigMaps, on loopback.

It knows what matters for compare-and-swap, by Kubernetes' own rules: a PUT with
another resourceVersion, and a POST of what is there, are conflicts (409).
"""

import collections
import http.server
import itertools
import json
import pathlib
import threading
import uuid
from typing import Any


class Server:
  """Runs until the end of `with`.

  Attributes:
    objects: by path.
    faults: what happens to the next requests, one each: an HTTP status that is
      answered instead; 'lose', which does as told and does not answer; 'hang',
      which does nothing until the end; None, which is no fault.
  """

  def __init__(self):
    self.objects: dict[str, dict[str, Any]] = {}
    self.faults: collections.deque[int | str | None] = collections.deque()
    self._versions = itertools.count(1)
    self._lock, self._end = threading.Lock(), threading.Event()

    class Handler(_Handler):
      server_of = self

    self._http = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Handler)
    self._thread = threading.Thread(
      target=self._http.serve_forever, args=(0.01,)
    )

  def __enter__(self) -> 'Server':
    self._thread.start()
    return self

  def __exit__(self, *unused) -> None:
    self._end.set()
    self._http.shutdown()
    self._thread.join()
    self._http.server_close()

  def write_kubeconfig(self, path: pathlib.Path) -> None:
    """Writes how to reach the server, with a token that is a secret."""
    config = {
      'apiVersion': 'v1',
      'kind': 'Config',
      'clusters': [
        {
          'name': 'fake',
          'cluster': {'server': f'http://127.0.0.1:{self._http.server_port}'},
        }
      ],
      'users': [{'name': 'zaya', 'user': {'token': 'correct-horse'}}],
      'contexts': [
        {'name': 'fake', 'context': {'cluster': 'fake', 'user': 'zaya'}}
      ],
      'current-context': 'fake',
    }
    path.write_text(json.dumps(config))

  def answer(
    self, method: str, path: str, body: dict[str, Any] | None
  ) -> tuple[int, Any] | None:
    """Status and content; None: nothing is answered."""
    fault = self.faults.popleft() if self.faults else None
    if fault == 'hang':
      self._end.wait()
      return None
    if isinstance(fault, int):
      return fault, {'kind': 'Status', 'message': 'as the test wants'}
    with self._lock:
      done = getattr(self, f'_{method.lower()}')(path, body)
    return None if fault == 'lose' else done

  def _get(self, path, body):
    return (200, self.objects[path]) if path in self.objects else _status(404)

  def _post(self, path, body):
    path = f'{path}/{body["metadata"]["name"]}'
    if path in self.objects:
      return _status(409)
    body['metadata']['uid'] = str(uuid.uuid4())
    return 201, self._store(path, body)

  def _put(self, path, body):
    if path not in self.objects:
      return _status(404)
    old, new = self.objects[path]['metadata'], body['metadata']
    if new.get('resourceVersion') not in (None, old['resourceVersion']):
      return _status(409)
    new['uid'] = old['uid']
    return 200, self._store(path, body)

  def _store(self, path, body):
    body['metadata']['resourceVersion'] = str(next(self._versions))
    self.objects[path] = body
    return body


class _Handler(http.server.BaseHTTPRequestHandler):
  server_of: Server

  def _serve(self):
    length = int(self.headers.get('Content-Length') or 0)
    body = json.loads(self.rfile.read(length)) if length else None
    answer = self.server_of.answer(self.command, self.path, body)
    if answer is None:
      return
    content = json.dumps(answer[1]).encode()
    self.send_response(answer[0])
    self.send_header('Content-Type', 'application/json')
    self.send_header('Content-Length', str(len(content)))
    if answer[0] == 429:
      self.send_header('Retry-After', '3600')
    self.end_headers()
    self.wfile.write(content)

  do_GET = do_POST = do_PUT = _serve

  def log_message(self, *unused):
    pass


def _status(code: int) -> tuple[int, Any]:
  return code, {'kind': 'Status', 'message': f'the fake server says {code}'}
