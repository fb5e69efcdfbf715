# SPDX-License-Identifier: Apache-2.0
"""Answers of OpenAI's API: from events of the engine to JSON."""

import dataclasses
import functools
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pipelines import tokenizer as tokenizer_lib
from zaya_jax.inference.serve import jobs as jobs_lib
from zaya_jax.inference.serve import requests

Event = jobs_lib.Event


@dataclasses.dataclass
class Choice:
  """One continuation as it comes.

  Attributes:
    index: among those of a request.
    row: its prompt.
    written: characters that the client has, for offsets of tokens.
    made: tokens.
  """

  index: int
  row: int
  written: int = 0
  made: int = 0
  is_begun: bool = False


class Answer:
  """The answer to one request.

  Args:
    request: what was asked for.
    about: the model.
  """

  def __init__(self, request: requests.Request, about: requests.About):
    self._request, self._about = request, about
    kind = 'chatcmpl' if request.chat else 'cmpl'
    self._head = {
      'id': f'{kind}-{secrets.token_hex(12)}',
      'object': 'chat.completion' if request.chat else 'text_completion',
      'created': int(time.time()),
      'model': about.name,
    }
    self._jobs: list[jobs_lib.Job] = []
    self.choices = [
      Choice(index=row * request.n + i, row=row)
      for row in range(len(request.prompts))
      for i in range(request.n)
    ]

  def jobs(self, tell: Callable[[int, Event], None]) -> list[jobs_lib.Job]:
    """What the engine is to do.

    Args:
      tell: called with the index of a choice and an event.
    """
    request = self._request
    self._jobs = [
      jobs_lib.Job(
        ids=request.prompts[choice.row],
        max_tokens=request.max_tokens[choice.row],
        tell=functools.partial(tell, choice.index),
        temperature=request.temperature,
        top_p=request.top_p,
        seed=(request.seed + choice.index) % 2**32,
        no_repeat=request.no_repeat,
        stop=request.stop,
        scored=request.logprobs is not None,
        prompt_scored=request.echo and request.logprobs is not None,
      )
      for choice in self.choices
    ]
    return self._jobs

  def whole(self, events: Sequence[Sequence[Event]]) -> dict[str, Any]:
    """The answer that comes at once, of the events of each choice."""
    choices = []
    for choice, of_one in zip(self.choices, events, strict=True):
      text, tokens = self._new(choice, _joined(of_one))
      logprobs = self._logprobs(choice, tokens)
      entry = self._entry(choice, text, of_one[-1].finish, logprobs)
      if self._request.chat:
        message = {'role': 'assistant', 'content': text, 'refusal': None}
        entry['message'] = message
      choices.append(entry)
    return {**self._head, 'choices': choices, 'usage': self._usage()}

  def begin(self) -> Iterator[dict[str, Any]]:
    """Yields the chunks before the first event."""
    if self._request.chat:
      for choice in self.choices:
        delta = {'role': 'assistant', 'content': ''}
        yield self._chunk({**self._entry(choice, '', None, None)}, delta)

  def chunk(self, index: int, event: Event) -> Iterator[dict[str, Any]]:
    """Yields what a stream says of an event, if it says anything."""
    choice = self.choices[index]
    text, tokens = self._new(choice, event)
    if not text and not event.finish and not (tokens and self._scores):
      return
    logprobs = self._logprobs(choice, tokens)
    entry = self._entry(choice, text, event.finish, logprobs)
    # The end comes apart, as clients expect it.
    delta = {'content': text} if text or not event.finish else {}
    yield self._chunk(entry, delta)

  def end(self) -> Iterator[dict[str, Any]]:
    """Yields the chunks behind the last event."""
    if self._request.usage:
      chunk = self._chunk(None, None)
      yield {**chunk, 'usage': self._usage()}

  @property
  def made(self) -> int:
    """Tokens of all choices so far."""
    return sum(choice.made for choice in self.choices)

  @property
  def _scores(self) -> bool:
    return self._request.logprobs is not None

  def _new(self, choice, event) -> tuple[str, Sequence[jobs_lib.Token]]:
    """Text and tokens of an event, those of an echo before them."""
    choice.made += len(event.tokens)
    text, tokens = event.text, event.tokens
    if self._request.echo and not choice.is_begun:
      ids = self._request.prompts[choice.row].tolist()
      text = self._about.tokenizer.decode(ids) + text
      tokens = (*event.prompt, *tokens)
    choice.is_begun = True
    return text, tokens

  def _entry(self, choice, text, finish, logprobs) -> dict[str, Any]:
    entry = {'index': choice.index, 'logprobs': logprobs}
    entry['finish_reason'] = finish
    if not self._request.chat:
      entry['text'] = text
    return entry

  def _chunk(self, entry, delta) -> dict[str, Any]:
    head = dict(self._head)
    if self._request.chat:
      head['object'] = 'chat.completion.chunk'
      entry = entry and {**entry, 'delta': delta}
    return {**head, 'choices': [entry] if entry else []}

  def _usage(self) -> dict[str, Any]:
    prompt = sum(map(len, self._request.prompts))
    # A prompt counts once: what its first continuation found.
    cached = sum(job.cached for job in self._jobs[:: self._request.n])
    return {
      'prompt_tokens': prompt,
      'completion_tokens': self.made,
      'total_tokens': prompt + self.made,
      'prompt_tokens_details': {'cached_tokens': cached},
    }

  def _logprobs(self, choice, tokens) -> dict[str, Any] | None:
    """What a choice says of the probabilities of some tokens."""
    if not self._scores:
      return None
    name = lambda i: token_name(self._about.tokenizer, i)
    tops = [token.top[: self._request.logprobs] for token in tokens]
    if self._request.chat:
      entry = lambda i, logprob: {
        'token': name(i),
        'logprob': logprob,
        'bytes': _bytes(name(i)),
      }
      content = [
        {
          **entry(token.id, token.logprob),
          'top_logprobs': [entry(i, logprob) for i, logprob in top],
        }
        for token, top in zip(tokens, tops, strict=True)
      ]
      return {'content': content, 'refusal': None}
    offsets = []
    for token in tokens:
      offsets.append(choice.written)
      choice.written += len(self._about.tokenizer.decode([token.id]))
    return {
      'tokens': [name(token.id) for token in tokens],
      'token_logprobs': [token.logprob for token in tokens],
      'top_logprobs': [
        _by_name(name, token, top)
        for token, top in zip(tokens, tops, strict=True)
      ],
      'text_offset': offsets,
    }


def token_name(tokenizer: tokenizer_lib.Tokenizer, id_: int) -> str:
  """The text of a token; its number where it has none of its own.

  Special tokens have none, and parts of a character would all be U+FFFD.
  """
  text = tokenizer.decode([id_])
  return text if text and '\ufffd' not in text else f'token_id:{id_}'


def _bytes(name: str) -> list[int] | None:
  return None if name.startswith('token_id:') else list(name.encode())


def _by_name(name, token, top) -> dict[str, float] | None:
  """The likeliest tokens and the one that stands there, by their names."""
  if token.logprob is None:
    return None
  found: dict[str, float] = {}
  for i, logprob in (*top, (token.id, token.logprob)):
    found.setdefault(name(i), logprob)  # Of one name, the likeliest.
  return found


def _joined(events: Sequence[Event]) -> Event:
  """The events of a choice as one."""
  return Event(
    text=''.join(event.text for event in events),
    tokens=tuple(token for event in events for token in event.tokens),
    prompt=tuple(token for event in events for token in event.prompt),
    finish=events[-1].finish,
  )
