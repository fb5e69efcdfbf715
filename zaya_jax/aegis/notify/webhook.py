# SPDX-License-Identifier: Apache-2.0
"""Posts incidents to a URL, in a thread: it may hang, fail or be away."""

import http.client
import json
import os
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable

from zaya_jax.aegis.decide import events
from zaya_jax.aegis.notify import address, batch

_TIMEOUT_S = 10.0
_EVERY_S = 1.0  # Chats take no more than a message a second.
_LONGEST_S = 60.0  # Between two tries.
_LAST_S = 5.0  # For the last message, when the supervisor ends.
_TRY_AGAIN = (408, 425, 429)  # And all from 500 on.


class Webhook:
  """Sends every incident that something was done about.

  Incidents that come while a message is under way are put together into the
  next one, so a flood is a few messages with counts.

  Args:
    url: of http or https.
    run_dir: whose last part is the name of the run.
    say: prints a line for people.
    every_s: seconds between two messages, and before the second try.
  """

  def __init__(
    self,
    url: str,
    run_dir: str,
    say: Callable[[str], None],
    *,
    every_s: float = _EVERY_S,
  ):
    self._url, self._say, self._every_s = url, say, every_s
    self._host = address.host(url)
    self._names = (
      os.path.basename(os.path.abspath(run_dir)),
      socket.gethostname(),
    )
    self._change = threading.Condition()
    self._batch, self._is_ending = batch.Batch(), False
    self._open = urllib.request.build_opener(_NoRedirect()).open
    self._thread = threading.Thread(target=self._run, daemon=True)
    self._thread.start()

  def take(self, event: events.Event, action: events.Action) -> None:
    """Leaves an incident to the thread; returns at once."""
    if action.kind != 'ignore':
      with self._change:
        self._batch.add(event, action)
        self._change.notify()

  def close(self) -> None:
    """Tries once more to send what is left, for a few seconds."""
    with self._change:
      self._is_ending = True
      self._change.notify()
    self._thread.join(_LAST_S)

  def _run(self) -> None:
    tries = 0
    while taken := self._take():
      why, again = self._post(taken)
      if why and not tries:
        then = 'it is tried again' if again else 'the message is lost'
        self._say(f'a notice to {self._host} failed ({why}); {then}')
      elif tries and not why:
        self._say(f'notices reach {self._host} again')
      if again:
        self._put_back(taken)
      tries = tries + 1 if why else 0
      with self._change:
        if self._is_ending and again:
          return
        pause = pause_s(tries, self._every_s)
        self._change.wait_for(lambda: self._is_ending, pause)

  def _take(self) -> batch.Batch | None:
    """Waits for incidents; None: there are none, and no more will come."""
    with self._change:
      self._change.wait_for(lambda: self._batch or self._is_ending)
      taken, self._batch = self._batch, batch.Batch()
      return taken or None

  def _put_back(self, taken: batch.Batch) -> None:
    with self._change:
      taken.extend(self._batch)
      self._batch = taken

  def _post(self, taken: batch.Batch) -> tuple[str, bool]:
    """Sends a message; returns why that failed, and whether to try again.

    Errors are not quoted, as they may have the URL.
    """
    request = urllib.request.Request(
      self._url,
      data=json.dumps(taken.message(*self._names)).encode(),
      headers={'Content-Type': 'application/json', 'User-Agent': 'zaya_jax'},
    )
    try:
      self._open(request, timeout=_TIMEOUT_S).close()
    except urllib.error.HTTPError as error:
      with error:
        again = error.code >= 500 or error.code in _TRY_AGAIN
        return f'HTTP {error.code}', again
    except (OSError, ValueError, http.client.HTTPException) as error:
      cause = getattr(error, 'reason', error)
      return getattr(cause, 'strerror', None) or type(cause).__name__, True
    return '', False


def pause_s(tries: int, every_s: float) -> float:
  """Seconds before the next message, after so many tries that failed."""
  return min(_LONGEST_S, every_s * 2 ** min(max(tries - 1, 0), 20))


class _NoRedirect(urllib.request.HTTPRedirectHandler):
  def redirect_request(self, *args, **kwargs):
    """None: a redirected POST would be a GET, to a server nobody has named."""
