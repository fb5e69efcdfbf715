# SPDX-License-Identifier: Apache-2.0
"""Requests of OpenAI's API: from JSON to what is to be continued, and how."""

import dataclasses
import json
import math
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pipelines import errors as pipeline_errors
from pipelines import tokenizer as tokenizer_lib
from zaya_jax.inference import conversation
from zaya_jax.inference.serve import errors

_MOST_STOPS = 16
_MOST_TOP = 20
_MOST_CHOICES = 128
_MOST_REPEAT = 64
_COMPLETION_TOKENS = 16  # As in OpenAI's API, unless max_tokens says more.
# Fields that would change the answer, and the values that ask for nothing.
_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
  'frequency_penalty': (None, 0),
  'presence_penalty': (None, 0),
  'logit_bias': (None, {}),
  'suffix': (None, ''),
  'tools': (None, []),
  'functions': (None, []),
  'response_format': (None, {'type': 'text'}),
  'modalities': (None, ['text']),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class About:
  """The model that requests are for.

  Attributes:
    name: as clients call it.
    tokenizer: of the model.
    context: tokens of a prompt and its continuation together.
  """

  name: str
  tokenizer: tokenizer_lib.Tokenizer
  context: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
  """What is to be continued, and how.

  Attributes:
    chat: whether it is a conversation.
    prompts: [L] int32 each.
    max_tokens: of each prompt.
    n: continuations of each prompt.
    temperature: 0: the likeliest token.
    top_p: samples from the likeliest tokens of this total probability.
    seed: of the samples.
    no_repeat: no sequence of this many tokens comes twice; 0: any may.
    stop: texts before which a continuation ends.
    logprobs: how many of the likeliest tokens are told; None: no probabilities.
    echo: whether the prompt is told as well.
    stream: whether the answer comes as it grows.
    usage: whether a stream ends with the numbers of tokens.
  """

  chat: bool
  prompts: Sequence[np.ndarray]
  max_tokens: Sequence[int]
  n: int
  temperature: float
  top_p: float
  seed: int
  no_repeat: int
  stop: tuple[str, ...]
  logprobs: int | None
  echo: bool
  stream: bool
  usage: bool


def completion(raw: bytes, about: About) -> Request:
  """Reads a request to /v1/completions.

  Raises:
    RequestError: in one sentence, for whatever is wrong with it.
  """
  body = _body(raw, about)
  prompts = [_ids(prompt, about) for prompt in _prompts(body)]
  logprobs = _number(body, 'logprobs', None, 0, _MOST_TOP, whole=True)
  asked = _number(body, 'max_tokens', None, 0, 2**31, whole=True)
  return Request(
    chat=False,
    prompts=prompts,
    max_tokens=[
      _room(len(ids), asked, _COMPLETION_TOKENS, about) for ids in prompts
    ],
    logprobs=logprobs,
    echo=_flag(body, 'echo'),
    **_how(body),
  )


def chat(raw: bytes, about: About) -> Request:
  """Reads a request to /v1/chat/completions.

  Raises:
    RequestError: in one sentence, for whatever is wrong with it.
  """
  body = _body(raw, about)
  messages = body.get('messages')
  if not isinstance(messages, list) or not messages:
    raise _wrong('messages', 'must be a list of {"role": …, "content": …}')
  if about.tokenizer.template_sha256 is None:
    raise errors.RequestError(
      400, 'This model has no chat template; ask /v1/completions.'
    )
  try:
    ids = conversation.encode(about.tokenizer, [_message(m) for m in messages])
  except pipeline_errors.DataError as error:
    raise errors.RequestError(400, str(error), 'messages') from error
  top = _number(body, 'top_logprobs', 0, 0, _MOST_TOP, whole=True)
  name = 'max_completion_tokens'
  name = 'max_tokens' if body.get(name) is None else name
  asked = _number(body, name, None, 1, 2**31, whole=True)
  return Request(
    chat=True,
    prompts=[ids],
    max_tokens=[_room(len(ids), asked, about.context, about)],
    logprobs=top if _flag(body, 'logprobs') else None,
    echo=False,
    **_how(body),
  )


def _body(raw: bytes, about: About) -> Mapping[str, Any]:
  """The object of a request, which is for this model."""

  def refuse(word):
    raise ValueError(f'{word} is no number')

  try:
    body = json.loads(raw, parse_constant=refuse)
  except (ValueError, RecursionError) as error:
    raise errors.RequestError(
      400, f'The body of the request is not JSON ({error}).'
    ) from error
  if not isinstance(body, dict):
    raise errors.RequestError(400, 'The body must be a JSON object.')
  name = body.get('model', about.name)
  if name != about.name:
    raise errors.RequestError(
      404,
      f'The model {name!r:.200} is not here; {about.name!r} is.',
      'model',
      'model_not_found',
    )
  for field, silent in _UNSUPPORTED.items():
    if body.get(field) not in silent:
      raise _wrong(field, 'is not supported; leave it out')
  return body


def _how(body: Mapping[str, Any]) -> dict[str, Any]:
  """What both kinds of requests say alike."""
  stop = body.get('stop')
  stop = [stop] if isinstance(stop, str) else stop or []
  if not isinstance(stop, list) or not all(isinstance(s, str) for s in stop):
    raise _wrong('stop', 'must be a text or a list of texts')
  if len(stop) > _MOST_STOPS:
    raise _wrong('stop', f'must have at most {_MOST_STOPS} texts')
  n = _number(body, 'n', 1, 1, _MOST_CHOICES, whole=True)
  if _number(body, 'best_of', n, 1, _MOST_CHOICES, whole=True) != n:
    raise _wrong('best_of', 'is not supported; leave it out')
  seed = _number(body, 'seed', None, -math.inf, math.inf, whole=True)
  options = body.get('stream_options') or {}
  if not isinstance(options, dict):
    raise _wrong('stream_options', 'must be an object')
  return {
    'n': n,
    'temperature': _number(body, 'temperature', 1.0, 0, 2),
    'top_p': _number(body, 'top_p', 1.0, 0, 1),
    'seed': (secrets.randbits(32) if seed is None else seed) % 2**32,
    # Beyond OpenAI's API, as --generate.no_repeat.
    'no_repeat': _number(body, 'no_repeat', 0, 0, _MOST_REPEAT, whole=True),
    'stop': tuple(conversation.clean(s) for s in stop if s),
    'stream': _flag(body, 'stream'),
    'usage': _flag(options, 'include_usage'),
  }


def _prompts(body: Mapping[str, Any]) -> list[Any]:
  """The prompts of a completion, each a text or its tokens."""
  prompt = body.get('prompt')
  if isinstance(prompt, str):
    return [prompt]
  if isinstance(prompt, list) and prompt:
    if all(type(item) is int for item in prompt):
      return [prompt]
    if all(isinstance(item, str) for item in prompt):
      return prompt
    if all(isinstance(item, list) and item for item in prompt):
      return prompt
  raise _wrong('prompt', 'must be a text, tokens, or a list of either')


def _ids(prompt: Any, about: About) -> np.ndarray:
  """The tokens of a prompt; a text begins with that of the begin."""
  if isinstance(prompt, str):
    ids = about.tokenizer.encode(conversation.clean(prompt))
    return np.insert(ids, 0, about.tokenizer.bos_id).astype(np.int32)
  most = about.tokenizer.vocab_size
  if not all(type(item) is int and 0 <= item < most for item in prompt):
    raise _wrong('prompt', f'must have tokens from 0 to {most - 1}')
  return np.array(prompt, np.int32)


def _message(message: Any) -> dict[str, str]:
  """Role and content of a message, both texts."""
  if not isinstance(message, dict) or not isinstance(message.get('role'), str):
    raise _wrong('messages', 'must be a list of {"role": …, "content": …}')
  content = message.get('content')
  if isinstance(content, list):
    parts = [p.get('text') if isinstance(p, dict) else None for p in content]
    if not all(isinstance(part, str) for part in parts):
      raise _wrong('messages', 'may only have parts with "text"')
    content = ''.join(parts)
  if not isinstance(content, str):
    raise _wrong('messages', 'must each have "content", a text')
  return {
    'role': conversation.clean(message['role']),
    'content': conversation.clean(content),
  }


def _room(length: int, asked: int | None, usual: int, about: About) -> int:
  """How many tokens a prompt of a length may be given."""
  left = about.context - length
  wanted = 1 if asked is None else asked
  if left < wanted:
    raise errors.RequestError(
      400,
      f'The prompt has {length:,} tokens and {wanted:,} are to be added, but '
      f'the context of this server is {about.context:,} (--serve.context).',
      'max_tokens' if left > 0 else 'messages',
      'context_length_exceeded',
    )
  return min(usual, left) if asked is None else asked


def _number(
  body: Mapping[str, Any],
  field: str,
  default: Any,
  low: float,
  high: float,
  whole: bool = False,
) -> Any:
  """A number of a request; null is the default."""
  value = body.get(field)
  if value is None:
    return default
  kinds = (int,) if whole else (int, float)
  if type(value) not in kinds or not low <= value <= high:
    kind = 'a whole number' if whole else 'a number'
    reach = f' from {low} to {high}' if high < math.inf else ''
    raise _wrong(field, f'must be {kind}{reach}')
  return value


def _flag(body: Mapping[str, Any], field: str) -> bool:
  value = body.get(field)
  if value is not None and not isinstance(value, bool):
    raise _wrong(field, 'must be true or false')
  return bool(value)


def _wrong(field: str, rule: str) -> errors.RequestError:
  return errors.RequestError(400, f'{field} {rule}.', field)
