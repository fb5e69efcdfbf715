# SPDX-License-Identifier: Apache-2.0
"""Who may come in, with how much, and how long that may take."""

import asyncio
import hmac
import os
import urllib.parse
from collections.abc import Sequence

import starlette.datastructures
import starlette.requests
import starlette.responses
from starlette import types

from zaya_jax import config as config_lib
from zaya_jax.config.checks import loopback
from zaya_jax.inference.serve import errors

KEY_VARIABLE = 'ZAYA_API_KEY'
_MOST_BYTES = 8 * 2**20  # Of a request.
_BODY_S = 30.0  # Until a request is here.
_OPEN = ('/', '/health')  # Without a key.


def keys(settings: config_lib.ServeConfig) -> tuple[str, ...]:
  """The keys that clients may send; (): none is asked for.

  Raises:
    UsageError: if the file has none, or other machines reach the address and
      there is no key.
  """
  path = settings.api_key_file
  if path:
    try:
      with open(path, encoding='utf-8') as file:
        found = tuple(filter(None, map(str.strip, file)))
    except (OSError, UnicodeDecodeError) as error:
      raise config_lib.UsageError(
        f'--serve.api_key_file={path} cannot be read: {error}.'
      ) from error
    if not found:
      raise config_lib.UsageError(
        f'--serve.api_key_file={path} has no key; write one per line.'
      )
  else:
    found = tuple(filter(None, [os.environ.get(KEY_VARIABLE, '').strip()]))
  if not found and not loopback.is_address(settings.host):
    raise config_lib.UsageError(
      f'--serve.host={settings.host} lets other machines in, and there is no '
      f'key: give --serve.api_key_file=FILE or {KEY_VARIABLE}, or leave the '
      'host out.'
    )
  return found


class Door:
  """Refuses who may not come in.

  Args:
    app: behind the door.
    allowed: keys; (): none is asked for.
    is_local: whether only this machine reaches the address.
  """

  def __init__(
    self, app: types.ASGIApp, allowed: Sequence[str], is_local: bool
  ):
    self._app, self._is_local = app, is_local
    self._allowed = [key.encode() for key in allowed]

  async def __call__(
    self, scope: types.Scope, receive: types.Receive, send: types.Send
  ) -> None:
    """Passes a request on, or answers it."""
    refused = scope['type'] == 'http' and self._refusal(scope)
    if refused:
      response = starlette.responses.JSONResponse(
        refused.body(), refused.status
      )
      return await response(scope, receive, send)
    await self._app(scope, receive, send)

  def _refusal(self, scope: types.Scope) -> errors.RequestError | None:
    headers = starlette.datastructures.Headers(scope=scope)
    host = headers.get('host', '')
    if self._is_local and not loopback.names(host):
      # A page in a browser here, whose name leads here, must not read it.
      return errors.RequestError(421, 'This host is not served.')
    origin = headers.get('origin')
    if origin and urllib.parse.urlsplit(origin).netloc != host:
      return errors.RequestError(403, 'Pages of other sites may not ask.')
    if not self._allowed or scope['path'] in _OPEN:
      return None
    kind, _, key = headers.get('authorization', '').partition(' ')
    sent = key.strip().encode() if kind.lower() == 'bearer' else b''
    # All are compared: how long it takes says nothing.
    if any([hmac.compare_digest(sent, known) for known in self._allowed]):
      return None
    return errors.RequestError(
      401, 'The key is missing or wrong; send Authorization: Bearer KEY.'
    )


async def read(request: starlette.requests.Request) -> bytes:
  """The body of a request.

  Raises:
    RequestError: if it is too large or takes too long.
  """
  large = errors.RequestError(
    413, f'A request may have {_MOST_BYTES // 2**20} MiB.'
  )
  length = request.headers.get('content-length', '')
  if length.isdecimal() and int(length) > _MOST_BYTES:
    raise large
  parts, size = [], 0
  try:
    async with asyncio.timeout(_BODY_S):
      async for part in request.stream():
        parts.append(part)
        size += len(part)
        if size > _MOST_BYTES:
          raise large
  except TimeoutError as error:
    raise errors.RequestError(
      408, f'The request did not come within {_BODY_S:.0f} s.'
    ) from error
  return b''.join(parts)
