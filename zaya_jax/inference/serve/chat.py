# SPDX-License-Identifier: Apache-2.0
"""--mode=chat: a conversation in the terminal.

A line is a message, and the answer is written as it grows; Ctrl-C ends an
answer, and between two answers the conversation. What is typed comes from
stdin: without a terminal each of its lines is a message.
"""

import contextlib
import dataclasses
import queue
import sys

import numpy as np

from zaya_jax import config as config_lib
from zaya_jax.inference import conversation
from zaya_jax.inference import model as model_lib
from zaya_jax.inference.serve import engine as engine_lib
from zaya_jax.inference.serve import jobs, start
from zaya_jax.metrics import text

_NEW, _END = '/new', '/end'


def main(config: config_lib.Config) -> None:
  """Talks until the end of stdin.

  Raises:
    UsageError: if there is no model, tokenizer or chat template.
    DataError: if the template refuses the conversation.
  """
  model = start.model(config)
  if model.tokenizer.template_sha256 is None:
    raise config_lib.UsageError(
      f'--source={config.source or config.run_dir} has no chat template; put a '
      'chat_template.jinja beside its tokenizer.json, or use --mode=generate.'
    )
  size = start.context(model, config.serving)
  prefixes = min(1, config.serving.prefixes)
  settings = dataclasses.replace(
    config.serving, slots=1, queue=1, prefixes=prefixes
  )
  with start.running(model, size, settings, scores=False) as engine:
    if sys.stdin.isatty():
      start.note(f'{_NEW} begins anew, {_END} ends; Ctrl-C ends an answer.')
    talk = _Talk(config, model, engine, size)
    with contextlib.suppress(KeyboardInterrupt):
      while (line := _ask()) is not None:
        if line == _NEW:
          talk.messages.clear()
        elif line:
          talk.answer(line)


def _ask() -> str | None:
  """The next message; None: there is none."""
  is_terminal = sys.stdin.isatty()
  if is_terminal:
    with contextlib.suppress(ImportError):
      import readline  # noqa: F401  Lets a line be edited.
  try:
    line = input('> ' if is_terminal else '').strip()
  except EOFError:
    return None
  except UnicodeDecodeError as error:
    raise config_lib.UsageError(
      f'stdin is not text in UTF-8 ({error}); convert it.'
    ) from error
  return None if line == _END else conversation.clean(line)


class _Talk:
  """A conversation with its model."""

  def __init__(
    self,
    config: config_lib.Config,
    model: model_lib.Model,
    engine: engine_lib.Engine,
    size: int,
  ):
    self._how, self._seed = config.generate, config.seed
    self._model, self._engine, self._size = model, engine, size
    self.messages: list[dict[str, str]] = []

  def answer(self, line: str) -> None:
    """Says a line, and writes what the model answers."""
    self.messages.append({'role': 'user', 'content': line})
    ids = self._ids()
    if ids is None:
      return
    events: queue.Queue[jobs.Event] = queue.Queue()
    job = jobs.Job(
      ids=ids,
      max_tokens=min(self._how.max_tokens, self._size - len(ids)),
      tell=events.put,
      temperature=self._how.temperature,
      top_p=self._how.top_p,
      # Another one for each answer.
      seed=(self._seed + len(self.messages)) % 2**32,
      no_repeat=self._how.no_repeat,
      stop=self._how.stop,
    )
    self._engine.submit([job])
    # A terminal would obey what the model writes.
    safe = text.printable if sys.stdout.isatty() else str
    said = []
    try:
      event = jobs.Event()
      while not event.finish:
        event = events.get()
        said.append(event.text)
        print(safe(event.text), end='', flush=True)
    except KeyboardInterrupt:  # What was said so far counts.
      self._engine.cancel([job])
    print()
    if self._engine.failure:
      raise self._engine.failure
    self.messages.append({'role': 'assistant', 'content': ''.join(said)})

  def _ids(self) -> np.ndarray | None:
    """The tokens of the conversation; None: the last message has no room."""
    room = max(2, self._size // 8)  # For some of an answer.
    while True:
      ids = conversation.encode(self._model.tokenizer, self.messages)
      if len(ids) + room <= self._size:
        return ids
      if len(self.messages) == 1:
        start.note(
          f'note: the message has {len(ids):,} tokens, too many for '
          f'--serve.context={self._size}; it is left out.'
        )
        self.messages.clear()
        return None
      start.note('note: the oldest message and its answer are forgotten.')
      del self.messages[:2]
