# SPDX-License-Identifier: Apache-2.0
"""What clients are told when a request is not answered."""

from typing import Any

_KINDS = {
  401: 'authentication_error',
  404: 'not_found_error',
  429: 'rate_limit_error',
}


class RequestError(Exception):
  """A request that is not answered, in the form of OpenAI's API.

  Args:
    status: of HTTP.
    message: one sentence.
    param: the field of the request that is wrong.
    code: a word for programs.
  """

  def __init__(
    self,
    status: int,
    message: str,
    param: str | None = None,
    code: str | None = None,
  ):
    super().__init__(message)
    self.status, self.message = status, message
    self.param, self.code = param, code

  def body(self) -> dict[str, Any]:
    """The JSON that is sent."""
    usual = 'server_error' if self.status >= 500 else 'invalid_request_error'
    error = {
      'message': self.message,
      'type': _KINDS.get(self.status, usual),
      'param': self.param,
      'code': self.code,
    }
    return {'error': error}


def failed() -> RequestError:
  """What is told when it is not the fault of the client."""
  return RequestError(500, 'The server has failed; its log says why.')
