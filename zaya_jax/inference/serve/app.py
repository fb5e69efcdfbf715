# SPDX-License-Identifier: Apache-2.0
"""The application behind HTTP: OpenAI's API, health, metrics and a page."""

import asyncio
import contextlib
import dataclasses
import json
import pathlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import prometheus_client
from starlette import applications, concurrency, exceptions, routing, types
from starlette import requests as http
from starlette import responses as replies

from zaya_jax.inference.serve import (
  answers,
  door,
  errors,
  jobs,
  meters,
  requests,
)
from zaya_jax.inference.serve import engine as engine_lib

_PAGE = pathlib.Path(__file__).with_name('page.html')
_SEND_S = 60.0  # A client that reads nothing for so long has gone.
_GONE = 499  # As nginx has it: nobody sees it but the metrics.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Server:
  """What answers need.

  Attributes:
    about: the model.
    engine: that continues texts.
    meters: of /metrics.
  """

  about: requests.About
  engine: engine_lib.Engine
  meters: meters.Meters

  def app(self) -> applications.Starlette:
    """The application; `door.Door` stands before it."""
    routes = [
      ('/', self._page, 'GET'),
      ('/health', self._health, 'GET'),
      ('/metrics', self._metrics, 'GET'),
      ('/v1/models', self._models, 'GET'),
      ('/v1/models/{name:path}', self._model, 'GET'),
      ('/v1/completions', self._answering(requests.completion), 'POST'),
      ('/v1/chat/completions', self._answering(requests.chat), 'POST'),
    ]
    return applications.Starlette(
      routes=[
        routing.Route(path, endpoint, methods=[method])
        for path, endpoint, method in routes
      ],
      exception_handlers={
        errors.RequestError: self._refuse,
        exceptions.HTTPException: self._refuse,
        Exception: self._fail,
      },
    )

  async def _page(self, request: http.Request) -> replies.Response:
    del request
    return replies.FileResponse(
      _PAGE,
      headers={
        'Cache-Control': 'no-cache',
        'Content-Security-Policy': "default-src 'none'; connect-src 'self'; "
        "script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        'X-Content-Type-Options': 'nosniff',
      },
    )

  async def _health(self, request: http.Request) -> replies.Response:
    del request
    if self.engine.failure:
      return replies.JSONResponse({'status': 'failed'}, 503)
    return replies.JSONResponse({'status': 'ok'})

  async def _metrics(self, request: http.Request) -> replies.Response:
    del request
    return replies.Response(
      prometheus_client.generate_latest(self.meters.registry),
      media_type=prometheus_client.CONTENT_TYPE_LATEST,
    )

  async def _models(self, request: http.Request) -> replies.Response:
    del request
    return replies.JSONResponse({'object': 'list', 'data': [self._card()]})

  async def _model(self, request: http.Request) -> replies.Response:
    name = request.path_params['name']
    if name != self.about.name:
      raise errors.RequestError(
        404, f'The model {name!r:.200} is not here.', 'model', 'model_not_found'
      )
    return replies.JSONResponse(self._card())

  def _card(self) -> dict[str, Any]:
    return {
      'id': self.about.name,
      'object': 'model',
      'created': 0,
      'owned_by': 'zaya_jax',
      'max_model_len': self.about.context,
      'chat': self.about.tokenizer.template_sha256 is not None,
    }

  def _answering(self, parse: Callable) -> Callable:
    """The endpoint of one kind of request."""

    async def answer(request: http.Request) -> replies.Response:
      body = await door.read(request)
      asked = await concurrency.run_in_threadpool(parse, body, self.about)
      talk = _Talk(self, request, asked)
      if asked.stream:
        return _Stream(talk)
      with talk.begun():
        return await talk.whole()

    return answer

  async def _refuse(
    self, request: http.Request, error: Any
  ) -> replies.Response:
    """What is told of a request that is not worked on."""
    if isinstance(error, exceptions.HTTPException):
      error = errors.RequestError(error.status_code, f'{error.detail}.')
    known = request.url.path in ('/v1/completions', '/v1/chat/completions')
    path = request.url.path if known else 'other'
    self.meters.refused(path, error.status)
    headers = dict.fromkeys((429, 503), {'Retry-After': '1'})
    # The rest of what is sent is not read.
    headers |= dict.fromkeys((408, 413), {'Connection': 'close'})
    return replies.JSONResponse(
      error.body(), error.status, headers.get(error.status)
    )

  async def _fail(
    self, request: http.Request, error: Exception
  ) -> replies.Response:
    """What is told of a mistake of ours; Starlette also logs it."""
    del error
    return await self._refuse(request, errors.failed())


class _Talk:
  """One request with the jobs that answer it."""

  def __init__(
    self, server: Server, request: http.Request, asked: requests.Request
  ):
    self._server, self._request = server, request
    self._answer = answers.Answer(asked, server.about)
    self._events: asyncio.Queue[tuple[int, jobs.Event]] = asyncio.Queue()
    self._jobs = self._answer.jobs(self._tell(asyncio.get_running_loop()))
    if len(self._jobs) > server.engine.room:
      raise errors.RequestError(
        400,
        f'The request asks for {len(self._jobs)} texts, and this server has '
        f'room for {server.engine.room} (--serve.slots, --serve.queue).',
      )
    try:
      server.engine.submit(self._jobs)
    except engine_lib.FullError as error:
      raise errors.RequestError(429, str(error)) from error
    except engine_lib.ClosedError as error:
      raise errors.RequestError(503, str(error)) from error
    self._watch = server.meters.watch(
      request.url.path, sum(map(len, asked.prompts))
    )

  def _tell(self, loop: asyncio.AbstractEventLoop) -> Callable:
    """What the engine calls, in its own thread."""

    def tell(index: int, event: jobs.Event) -> None:
      with contextlib.suppress(RuntimeError):  # The loop has ended.
        loop.call_soon_threadsafe(self._events.put_nowait, (index, event))

    return tell

  @contextlib.contextmanager
  def begun(self):
    """Frees what is not done when the answer ends, however it ends."""
    try:
      yield
    finally:
      self._server.engine.cancel(self._jobs)

  async def _next(self) -> AsyncIterator[tuple[int, jobs.Event]]:
    """Yields the events of all choices up to the last."""
    left = len(self._jobs)
    begun = set()
    while left:
      index, event = await self._events.get()
      if index not in begun:
        begun.add(index)
        self._watch.cached(self._jobs[index].cached)
      if event.finish == jobs.ERROR:
        raise errors.failed()
      self._watch.tokens(len(event.tokens))
      left -= event.finish is not None
      yield index, event

  async def whole(self) -> replies.Response:
    """The answer at once, unless the client leaves before."""
    work = asyncio.ensure_future(self._collect())
    left = asyncio.ensure_future(self._left())
    try:
      await asyncio.wait((work, left), return_when=asyncio.FIRST_COMPLETED)
      if work.done():
        response = replies.JSONResponse(self._answer.whole(work.result()))
        self._watch.end(200)
        return response
      self._watch.cancelled()
      return replies.Response(status_code=_GONE)
    finally:
      work.cancel()
      left.cancel()

  async def _collect(self) -> list[list[jobs.Event]]:
    found: list[list[jobs.Event]] = [[] for _ in self._jobs]
    async for index, event in self._next():
      found[index].append(event)
    return found

  async def _left(self) -> None:
    """Waits until the client has gone."""
    while (await self._request.receive())['type'] != 'http.disconnect':
      pass

  async def lines(self) -> AsyncIterator[str]:
    """Yields the server-sent events of a stream."""
    line = lambda chunk: f'data: {json.dumps(chunk, ensure_ascii=False)}\n\n'
    try:
      for chunk in self._answer.begin():
        yield line(chunk)
      async for index, event in self._next():
        for chunk in self._answer.chunk(index, event):
          yield line(chunk)
      for chunk in self._answer.end():
        yield line(chunk)
      self._watch.end(200)
    except errors.RequestError as error:
      yield line(error.body())
      self._watch.end(error.status)
    yield 'data: [DONE]\n\n'

  def gone(self) -> None:
    """The client of a stream has left."""
    self._watch.cancelled()


class _Stream(replies.StreamingResponse):
  """An answer as it grows; its jobs end with the connection."""

  def __init__(self, talk: _Talk):
    self._talk = talk
    super().__init__(
      talk.lines(),
      media_type='text/event-stream',
      headers={'Cache-Control': 'no-cache', 'X-Accel-Buffering': 'no'},
    )

  async def __call__(
    self, scope: types.Scope, receive: types.Receive, send: types.Send
  ) -> None:
    is_whole = False

    async def patient(message: types.Message) -> None:
      nonlocal is_whole
      async with asyncio.timeout(_SEND_S):
        await send(message)
      is_whole = not message.get('more_body', True)

    with self._talk.begun():
      try:
        await super().__call__(scope, receive, patient)
      except (TimeoutError, OSError):
        pass
      finally:
        if not is_whole:
          self._talk.gone()
