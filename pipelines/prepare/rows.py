# SPDX-License-Identifier: Apache-2.0
"""Documents, and the rows of .jsonl and .parquet that become one each.

A row holds a text, or a conversation: a list of messages under one of the
usual names. The chat template of the tokenizer writes a conversation as text.
"""

import dataclasses
import io
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TextIO

from pipelines import chat, errors

# Names of the list of messages; a row that has `--data.text_field` needs none.
MESSAGES = ('messages', 'conversations')
TOOLS = 'tools'

_PIECE = 2**20  # Characters; bounds memory, large enough to encode well.
# How the older convention of {"from": …, "value": …} names the roles.
_ROLES = {'human': 'user', 'gpt': chat.ASSISTANT}


@dataclasses.dataclass(frozen=True)
class Document:
  """One text.

  Attributes:
    name: of its file, relative to the input, with forward slashes.
    index: of the line or row in the file; 0 for a whole file.
    pieces: gives the text in parts, afresh at each call.
    turns: of a conversation, its text once more, in pieces of which some count
      in the loss; None: a plain text.
  """

  name: str
  index: int
  pieces: Callable[[], Iterator[str]]
  turns: chat.Turns | None = None

  @property
  def key(self) -> str:
    """Names the document, the same on every machine."""
    return f'{self.name}:{self.index}'


@dataclasses.dataclass(frozen=True)
class Rows:
  """How rows become documents.

  Attributes:
    text_field: where the text of a row is.
    template: gives what writes conversations; called at the first of them.
    skipped: key of a row to the reason why it gives no document; grows.
  """

  text_field: str
  template: Callable[[], chat.Template]
  skipped: dict[str, str]

  @property
  def fields(self) -> tuple[str, ...]:
    """Where a text or a conversation may be, the first choice first."""
    return (self.text_field, *MESSAGES)

  def field(self, row: Mapping[str, Any]) -> str | None:
    """Where it is in this row, preferably not null; None: nowhere."""
    there = [name for name in self.fields if name in row]
    filled = [name for name in there if row[name] is not None]
    return next(iter(filled + there), None)

  def document(
    self, name: str, index: int, row: Mapping[str, Any], where: str
  ) -> Iterator[Document]:
    """Yields the document of a row that has a `field`, unless it is empty.

    Raises:
      DataError: if it is neither a text nor a conversation.
    """
    field = self.field(row)
    value = row[field]
    if isinstance(value, str) and field == self.text_field:
      # JSON can spell half a surrogate pair, which no encoding can write.
      text = _whole(value)
      if text:
        yield Document(name, index, lambda: pieces(io.StringIO(text)))
      return
    if not isinstance(value, list):
      text = 'a string, nor ' if field == self.text_field else ''
      raise errors.DataError(
        f'{where}: field {field!r} (--data.text_field) is not {text}a list of '
        'messages.'
      )
    messages = [_message(m, i, where) for i, m in enumerate(value, 1)]
    if chat.ASSISTANT not in [message['role'] for message in messages]:
      reason = 'no assistant turn' if messages else 'no messages'
      self.skipped[f'{name}:{index}'] = reason
      return
    turns = self._turns(messages, row.get(TOOLS), where)
    if not any(counts for _, counts in turns):
      self.skipped[f'{name}:{index}'] = 'nothing in it counts'
      return
    text = ''.join(text for text, _ in turns)
    yield Document(name, index, lambda: iter([text]), turns)

  def _turns(self, messages: list[Any], tools: Any, where: str) -> chat.Turns:
    if not isinstance(tools, list | None):
      raise errors.DataError(f'{where}: field {TOOLS!r} is not a list.')
    try:
      turns = self.template().render_with_mask(messages, tools)
    except errors.DataError as error:
      raise errors.DataError(f'{where}: {error}') from error
    return tuple((_whole(text), counts) for text, counts in turns)


def pieces(stream: TextIO) -> Iterator[str]:
  """Cuts at line ends: there a tokenizer rarely joins what is on both sides."""
  rest = ''
  while block := stream.read(_PIECE):
    text = rest + block
    cut = text.rfind('\n') + 1 or len(text)
    yield text[:cut]
    rest = text[cut:]
  if rest:
    yield rest


def _message(message: Any, number: int, where: str) -> Mapping[str, Any]:
  """Checks a message, and renames what the older convention calls otherwise."""
  where = f'{where}: message {number}'
  if not isinstance(message, dict):
    raise errors.DataError(f'{where} is not a JSON object.')
  if 'role' not in message and 'from' in message:
    role = message['from']
    message = {'role': _ROLES.get(role, role), 'content': message.get('value')}
  if not isinstance(message.get('role'), str):
    raise errors.DataError(f"{where} has no 'role' that is a string.")
  content = message.get('content')
  if content is None and message.get('tool_calls'):
    return message  # Calling a tool is all that this turn does.
  if not isinstance(content, str | list):
    raise errors.DataError(
      f"{where} (role {message['role']!r}) has no 'content' that is a string "
      'or a list of parts.'
    )
  return message


def _whole(text: str) -> str:
  return text.encode('utf-16', 'surrogatepass').decode('utf-16', 'replace')
