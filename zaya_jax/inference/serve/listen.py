# SPDX-License-Identifier: Apache-2.0
"""The HTTP server: connections, signals, and how it ends."""

import asyncio
import contextlib
import resource
import signal
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import uvicorn
from uvicorn.protocols.http import h11_impl

from zaya_jax import config as config_lib
from zaya_jax.config.checks import loopback
from zaya_jax.inference.serve import app as app_lib
from zaya_jax.inference.serve import door, meters, requests, start
from zaya_jax.inference.serve import engine as engine_lib

_FILES = 65_536  # A connection is one.
_CONNECTIONS = 4096  # More are told to come again (503).
_KEEP_S = 30  # A connection between two requests.
_HEADERS_S = 20.0  # Until a connection has sent the head of a request.


def server(
  about: requests.About,
  engine: engine_lib.Engine,
  settings: config_lib.ServeConfig,
  allowed: Sequence[str],
) -> uvicorn.Server:
  """What serves, with its `serve([socket])`, until a signal or a failure.

  Args:
    about: the model.
    engine: of the model.
    settings: of the server.
    allowed: keys that clients may send; (): none is asked for.
  """
  behind = app_lib.Server(
    about=about,
    engine=engine,
    meters=meters.Meters(engine, settings.slots),
  )
  is_local = loopback.is_address(settings.host) and not allowed
  config = uvicorn.Config(
    door.Door(behind.app(), allowed, is_local),
    loop='asyncio',
    http=_Protocol,
    ws='none',
    lifespan='off',
    log_config=None,
    access_log=False,
    proxy_headers=False,
    server_header=False,
    limit_concurrency=_CONNECTIONS,
    timeout_keep_alive=_KEEP_S,
    timeout_graceful_shutdown=settings.drain_s,
  )
  return _Server(config, about, engine)


def allow_files() -> None:
  """Asks for as many open files as the system lets this process have."""
  soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
  most = _FILES if hard == resource.RLIM_INFINITY else min(hard, _FILES)
  if soft != resource.RLIM_INFINITY and soft < most:
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


class _Server(uvicorn.Server):
  """Says where it is; ends with its engine, or by a signal without an error."""

  def __init__(
    self,
    config: uvicorn.Config,
    about: requests.About,
    engine: engine_lib.Engine,
  ):
    super().__init__(config)
    self._about, self._engine = about, engine

  async def startup(self, sockets: Any = None) -> None:
    """Begins to listen."""
    await super().startup(sockets)
    host, port = sockets[0].getsockname()[:2]
    host = f'[{host}]' if ':' in host else host
    print(
      f'http://{host}:{port}/ has {self._about.name} (API: /v1; Ctrl-C ends '
      'it)',
      flush=True,
    )

  async def on_tick(self, counter: int) -> bool:
    """Whether to end, asked ten times a second."""
    return await super().on_tick(counter) or self._engine.failure is not None

  @contextlib.contextmanager
  def capture_signals(self) -> Iterator[None]:
    """The first signal lets requests end, the second does not wait."""
    is_main = threading.current_thread() is threading.main_thread()
    numbers = (signal.SIGINT, signal.SIGTERM) if is_main else ()
    before = {number: signal.getsignal(number) for number in numbers}
    for number, handler in before.items():
      if handler != signal.SIG_IGN:
        signal.signal(number, self._stop)
    try:
      yield
    finally:
      for number, handler in before.items():
        signal.signal(number, handler)

  def _stop(self, *_: Any) -> None:
    self.force_exit = self.should_exit
    if not self.should_exit:
      start.note('zaya_jax: requests may end; no new ones are taken.')
    self.should_exit = True


class _Protocol(h11_impl.H11Protocol):
  """Closes connections that send no request."""

  _timer: asyncio.TimerHandle | None = None
  _seen: Any = None  # The last request when the timer was set.

  def connection_made(self, transport: Any) -> None:
    """A client has connected."""
    super().connection_made(transport)
    self._set_timer()

  def connection_lost(self, exc: Exception | None) -> None:
    """A client has gone."""
    if self._timer:
      self._timer.cancel()
    super().connection_lost(exc)

  def _set_timer(self) -> None:
    self._seen = self.cycle
    self._timer = self.loop.call_later(_HEADERS_S, self._look)

  def _look(self) -> None:
    is_idle = self.cycle is None or self.cycle.response_complete
    if is_idle and self.cycle is self._seen:
      self.transport.close()
    else:
      self._set_timer()
