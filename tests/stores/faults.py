# SPDX-License-Identifier: Apache-2.0
"""A server of an object store that fails as networks and stores do."""

import itertools
import socket
from collections.abc import Callable
from typing import Any

ANSWER, DROP, CUT = 'answer', 'drop', 'cut'


class Faults:
  """Stands before a WSGI application.

  Attributes:
    rule: what becomes of a request, by its number from 0 and its path: ANSWER,
      DROP (no answer) or CUT (half of one, then the connection ends).
    paths: of all requests so far.
  """

  def __init__(self) -> None:
    self.end()

  def end(self) -> None:
    """From now on each request is answered, and numbers begin anew."""
    self.rule: Callable[[int, str], str] = lambda number, path: ANSWER
    self.paths: list[str] = []
    self._numbers = itertools.count()

  def before(self, application: Callable[..., Any]) -> Callable[..., Any]:
    """The application with these faults."""

    def serve(environ, start):
      path = environ['PATH_INFO']
      self.paths.append(path)
      action = self.rule(next(self._numbers), path)
      if action == DROP:
        _hang_up(environ)
      answer = application(environ, start)
      return _half(environ, b''.join(answer)) if action == CUT else answer

    return serve


def _half(environ, content):
  yield content[: len(content) // 2]
  _hang_up(environ)


def _hang_up(environ):
  environ['werkzeug.socket'].shutdown(socket.SHUT_RDWR)
  raise ConnectionResetError  # The server takes it for the client's.
