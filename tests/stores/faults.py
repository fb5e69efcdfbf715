# SPDX-License-Identifier: Apache-2.0
"""What goes wrong on the way to an object store."""

import itertools
import socket
from collections.abc import Callable

ANSWER, DROP, CUT = 'answer', 'drop', 'cut'
EVERY_THIRD = (ANSWER, ANSWER, DROP, ANSWER, ANSWER, CUT)


class Faults:
  """What a server does with each request; it asks `action`.

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

  def every_third(self) -> None:
    """From now on every third request fails."""
    self.rule = lambda number, path: EVERY_THIRD[number % 6]

  def action(self, path: str) -> str:
    """What becomes of the next request."""
    self.paths.append(path)
    return self.rule(next(self._numbers), path)


def hang_up(connection: socket.socket) -> None:
  """Ends a connection, for both sides."""
  connection.shutdown(socket.SHUT_RDWR)
  raise ConnectionResetError  # The server takes it for the client's.
