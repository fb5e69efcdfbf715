# SPDX-License-Identifier: Apache-2.0
"""Conversations to text by the chat template of a tokenizer.

The text is, to the character, what `apply_chat_template` of `transformers`
gives. A template is a stranger's program: it runs in Jinja's sandbox.
"""

import dataclasses
import functools
import hashlib
import json
import os
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, Self

import jinja2

from pipelines import errors
from pipelines.chat import sandbox

TEMPLATE_NAME = 'chat_template.jinja'
CONFIG_NAME = 'tokenizer_config.json'
# What lies beside a tokenizer.json and says how to write a conversation.
FILE_NAMES = (CONFIG_NAME, 'special_tokens_map.json', TEMPLATE_NAME)
ASSISTANT = 'assistant'

Message = Mapping[str, Any]
Turns = Sequence[tuple[str, bool]]  # Text, and whether it counts.

_CHATML = """\
{% for message in messages %}
{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
{%- endfor %}
{% if add_generation_prompt %}
{{ '<|im_start|>assistant\n' }}
{%- endif %}"""
_CHATML_TOKENS = {'<|im_start|>', '<|im_end|>'}
_REASONING = ('reasoning_content', 'thinking', 'reasoning')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Template:
  """A chat template and the special tokens that it may name.

  Attributes:
    name: of the folder that it is from, for error messages.
    source: Jinja text; with tools, `tool_source` where there is one.
    special_tokens: 'bos_token', 'eos_token', … to their text.
    added_tokens: texts that the tokenizer reads as one id.
  """

  name: str
  source: str
  tool_source: str | None = None
  special_tokens: Mapping[str, str]
  added_tokens: frozenset[str]

  @classmethod
  def load(cls, folder: str | os.PathLike[str]) -> Self:
    """Reads the template that lies beside a tokenizer.json.

    A tokenizer without one gets ChatML if it has the tokens of ChatML.

    Raises:
      DataError: if there is none, or a file is damaged.
    """
    files = read_files(folder)
    path = pathlib.Path(folder, 'tokenizer.json')
    if path.is_file():
      files[path.name] = path.read_bytes()
    return cls.from_files(files, str(folder))

  @classmethod
  def from_files(cls, files: Mapping[str, bytes], name: str) -> Self:
    """Like `load`, from the contents of the files by their names."""
    try:
      config = json.loads(files.get(CONFIG_NAME, b'{}'))
      tokens = json.loads(files.get('special_tokens_map.json', b'{}')) | config
      content = json.loads(files.get('tokenizer.json', b'{}'))
      added = {token['content'] for token in content.get('added_tokens', ())}
      named = config.get('chat_template')
      if isinstance(named, list):
        named = {each['name']: each['template'] for each in named}
      if TEMPLATE_NAME in files:
        named = files[TEMPLATE_NAME].decode()
    except (AttributeError, KeyError, TypeError, ValueError) as error:
      raise errors.DataError(
        f'The tokenizer files of {name} cannot be read: {error!r}.'
      ) from error
    if not isinstance(named, dict):
      named = {'default': named}
    source = named.get('default')
    if source is None and added >= _CHATML_TOKENS:
      source = _CHATML
    if source is None:
      raise errors.DataError(
        f'The tokenizer {name} has no chat template; put a {TEMPLATE_NAME} '
        'beside its tokenizer.json, or give plain text.'
      )
    return cls(
      name=name,
      source=source,
      tool_source=named.get('tool_use'),
      special_tokens={
        key: text
        for key, value in tokens.items()
        if key.endswith('_token') and (text := _token_text(value))
      },
      added_tokens=frozenset(added),
    )

  @property
  def sha256(self) -> str:
    """Identifies what the template writes."""
    parts = [self.source, self.tool_source, dict(self.special_tokens)]
    return hashlib.sha256(
      json.dumps(parts, sort_keys=True).encode()
    ).hexdigest()

  @functools.cached_property
  def end_of_turn(self) -> str | None:
    """The special token after the assistant's words; None: there is none."""
    chat = [
      {'role': 'user', 'content': 'question'},
      {'role': ASSISTANT, 'content': 'answer'},
    ]
    _, _, tail = self.render(chat).rpartition('answer')
    found = [t for t in self.added_tokens if tail.lstrip().startswith(t)]
    return max(found, key=len, default=None)

  def render(
    self,
    messages: Sequence[Message],
    add_generation_prompt: bool = False,
    tools: Sequence[Mapping[str, Any]] | None = None,
  ) -> str:
    """Writes a conversation.

    Args:
      messages: each with "role" and "content".
      add_generation_prompt: ends with what begins the assistant's turn.
      tools: JSON schemas of functions that the assistant may call.

    Raises:
      DataError: if the template refuses the conversation, with its reason.
    """
    return self._write(messages, add_generation_prompt, tools).replace(
      sandbox.MARK, ''
    )

  def render_with_mask(
    self,
    messages: Sequence[Message],
    tools: Sequence[Mapping[str, Any]] | None = None,
  ) -> list[tuple[str, bool]]:
    """Writes a conversation in pieces and says which of them are to be learnt.

    These are the `{% generation %}` blocks of a template that has them. Of any
    other template, they are what each of the assistant's turns adds to the
    conversation before it with its generation prompt: the words and the token
    that ends the turn, without the white space that follows it.

    Returns:
      (text, whether it counts in the loss); joined, what `render` gives.

    Raises:
      DataError: as `render`, and if the text of a turn changes with what
        follows it.
    """
    if re.search(r'\{%[-+]?\s*generation\s*[-+]?%\}', self._source(tools)):
      pieces = self._write(messages, False, tools).split(sandbox.MARK)
      return [(text, i % 2 == 1) for i, text in enumerate(pieces) if text]
    whole = self.render(messages, tools=tools)
    turns, done = [], 0
    for i, message in enumerate(messages):
      if message.get('role') != ASSISTANT:
        continue
      before = self.render(messages[:i], True, tools)
      after = self.render(messages[: i + 1], tools=tools)
      if not (whole.startswith(after) and after.startswith(before)):
        raise errors.DataError(
          f'The chat template of {self.name} writes turn {i + 1} otherwise '
          'when others follow, so what the assistant says cannot be told '
          'apart; mark it there with {% generation %} … {% endgeneration %}.'
        )
      turn = self._without_space_behind_token(after[len(before) :])
      turns += [(whole[done : len(before)], False), (turn, True)]
      done = len(before) + len(turn)
    turns.append((whole[done:], False))
    return [piece for piece in turns if piece[0]]

  def _without_space_behind_token(self, turn: str) -> str:
    text = turn.rstrip()
    return text if text.endswith(tuple(self.added_tokens)) else turn

  def _source(self, tools: Any) -> str:
    return self.tool_source if tools and self.tool_source else self.source

  def _write(self, messages, add_generation_prompt, tools) -> str:
    try:
      return sandbox.compiled(self._source(tools)).render(
        **self.special_tokens,
        messages=[_plain(message) for message in messages],
        tools=tools or None,
        documents=None,
        add_generation_prompt=add_generation_prompt,
      )
    except jinja2.TemplateSyntaxError as error:
      raise errors.DataError(
        f'The chat template of {self.name} is not one: {error} (line '
        f'{error.lineno} of the template).'
      ) from error
    # A template runs Python's operators and methods on whatever it is given.
    except (
      jinja2.TemplateError,
      ArithmeticError,
      LookupError,
      TypeError,
      ValueError,
    ) as error:
      raise errors.DataError(
        f'The chat template of {self.name} refuses the conversation: {error}'
        f'{sandbox.place(error)}.'
      ) from error


def none() -> NoReturn:
  """For what has no tokenizer files; raises the DataError that says so."""
  raise errors.DataError(
    'A conversation needs the chat template of a tokenizer; name its folder '
    'with --data.tokenizer=FOLDER.'
  )


def read_files(folder: str | os.PathLike[str]) -> dict[str, bytes]:
  """The files of FILE_NAMES that are in a folder, by name."""
  paths = [pathlib.Path(folder, name) for name in FILE_NAMES]
  return {path.name: path.read_bytes() for path in paths if path.is_file()}


def _token_text(value: Any) -> str | None:
  """The text of a special token: a string, or an object that holds one."""
  value = value.get('content') if isinstance(value, dict) else value
  return value if isinstance(value, str) else None


def _plain(message: Message) -> dict[str, Any]:
  """What `transformers` makes of a message before the template sees it."""
  message = {k: v for k, v in message.items() if v is not None}
  thought = next((message[k] for k in _REASONING if k in message), None)
  if thought is None:
    return message
  return {'thinking': thought, **message, 'reasoning_content': thought}
