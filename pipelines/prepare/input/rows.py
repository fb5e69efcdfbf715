# SPDX-License-Identifier: Apache-2.0
"""Documents, and the rows of .jsonl and .parquet that become one each.

A row holds a text, or a conversation: a list of messages under one of the
usual names, or two answers to one prompt (`pairs`). The chat template of the
tokenizer writes a conversation as text.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from pipelines import chat, errors
from pipelines.prepare.input import pairs

# Names of the list of messages; a row that has `--data.text_field` needs none.
MESSAGES = ('messages', 'conversations')
TOOLS = pairs.TOOLS

Row = Mapping[str, Any]
# Messages and tools to messages that are short enough; None: there are none.
Trim = Callable[[list[Mapping[str, Any]], Any], list[Mapping[str, Any]] | None]

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
    rejected: of a pair, the turns of the conversation with the other answer.
  """

  name: str
  index: int
  pieces: Callable[[], Iterator[str]]
  turns: chat.Turns | None = None
  rejected: chat.Turns | None = None

  @property
  def key(self) -> str:
    """Names the document, the same on every machine."""
    return f'{self.name}:{self.index}'


class Rows:
  """How rows become documents.

  Attributes:
    text_field: where the text of a row is.
    skipped: key of a row to the reason why it gives no document; grows.
    count: rows so far.
    bad: rows that could not be used.
    first_bad: key of the first of these, and why; '': there is none.
  """

  def __init__(
    self,
    text_field: str,
    template: Callable[[], chat.Template],
    *,
    skip_bad: bool = False,
    trim: Trim | None = None,
  ):
    """Takes what rows need.

    Args:
      text_field: `--data.text_field`.
      template: gives what writes conversations; called at the first of them.
      skip_bad: counts and names bad rows, rather than raising.
      trim: makes messages (and tools) short enough; None: they are not.
    """
    self.text_field = text_field
    self.skipped: dict[str, str] = {}
    self.count = self.bad = 0
    self.first_bad = ''
    self._template, self._trim = template, trim
    self._skip_bad = skip_bad

  @property
  def fields(self) -> tuple[str, ...]:
    """Where a text or a conversation may be, the first choice first."""
    return (self.text_field, *MESSAGES)

  def field(self, row: Mapping[str, Any]) -> str | None:
    """Where it is in this row, preferably not null; None: nowhere."""
    if pairs.is_pair(row):
      return pairs.CHOSEN
    there = [name for name in self.fields if name in row]
    filled = [name for name in there if row[name] is not None]
    return next(iter(filled + there), None)

  def read(
    self, name: str, index: int, get: Callable[[], Row], where: str
  ) -> Iterator[Document]:
    """Yields the document of the row that `get` gives, unless it is empty.

    Raises:
      DataError: from `get` and `document`, unless bad rows are skipped.
    """
    self.count += 1
    try:
      found = list(self.document(name, index, get(), where))
    except errors.DataError as error:
      if not self._skip_bad:
        raise
      self.bad += 1
      self.first_bad = self.first_bad or f'{name}:{index} ({error})'
      self.skipped[f'{name}:{index}'] = str(error)
      return
    yield from found

  def document(
    self, name: str, index: int, row: Mapping[str, Any], where: str
  ) -> Iterator[Document]:
    """Yields the document of a row that has a `field`, unless it is empty.

    Raises:
      DataError: if it is neither a text nor a conversation.
    """
    field = self.field(row)
    if field == pairs.CHOSEN and pairs.is_pair(row):
      yield self._pair(name, index, row, where)
      return
    value = row[field]
    if isinstance(value, str) and field == self.text_field:
      # JSON can spell half a surrogate pair, which no encoding can write.
      text = _whole(value)
      if text:
        yield Document(name, index, lambda: pieces([text]))
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
    tools = row.get(TOOLS)
    if not isinstance(tools, list | None):
      raise errors.DataError(f'{where}: field {TOOLS!r} is not a list.')
    turns = self._turns(messages, tools, where)
    if turns is None:
      self.skipped[f'{name}:{index}'] = 'its answers alone are too long'
      return
    if not any(counts for _, counts in turns):
      self.skipped[f'{name}:{index}'] = 'nothing in it counts'
      return
    text = ''.join(text for text, _ in turns)
    yield Document(name, index, lambda: iter([text]), turns)

  def _pair(
    self, name: str, index: int, row: Mapping[str, Any], where: str
  ) -> Document:
    """Both conversations of a row, one behind the other."""
    prompt, *answers = pairs.read(row, MESSAGES, where)
    tools, both = row.get(TOOLS), []
    before = [_message(m, i, where) for i, m in enumerate(prompt, 1)]
    said = sum(m['role'] == chat.ASSISTANT for m in before)
    for answer in answers:
      after = [_message(m, i, where) for i, m in enumerate(answer, 1)]
      try:
        whole = [*before, *after]
        turns = self._template().render_with_mask(whole, tools)
      except errors.DataError as error:
        raise errors.DataError(f'{where}: {error}') from error
      turns = tuple((_whole(text), counts) for text, counts in turns)
      both.append(pairs.only_answer(turns, said))
    text = ''.join(text for turns in both for text, _ in turns)
    return Document(name, index, lambda: iter([text]), *both)

  def _turns(
    self, messages: list[Any], tools: Any, where: str
  ) -> chat.Turns | None:
    try:
      template = self._template()
      if self._trim:
        messages = self._trim(messages, tools)
      if messages is None:
        return None
      turns = template.render_with_mask(messages, tools)
    except errors.DataError as error:
      raise errors.DataError(f'{where}: {error}') from error
    return tuple((_whole(text), counts) for text, counts in turns)


def pieces(texts: Iterable[str]) -> Iterator[str]:
  """Cuts at line ends: there a tokenizer rarely joins what is on both sides."""
  rest = ''
  for text in texts:
    for start in range(0, len(text), _PIECE):
      part = rest + text[start : start + _PIECE]
      if len(part) < _PIECE:
        rest = part
        continue
      cut = part.rfind('\n') + 1 or len(part)
      yield part[:cut]
      rest = part[cut:]
  if rest:
    yield rest


def _message(message: Any, number: int, where: str) -> Mapping[str, Any]:
  """Checks a message, and renames what the older convention calls otherwise."""
  where = f'{where}: message {number}'
  if not isinstance(message, dict):
    raise errors.DataError(f'{where} is not a JSON object.')
  if 'role' not in message and 'from' in message:
    role = message['from']
    if isinstance(role, str):
      role = _ROLES.get(role, role)
    message = {'role': role, 'content': message.get('value')}
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
  """Text without half surrogate pairs, which are rare and cost nothing else."""
  try:
    text.encode()
    return text
  except UnicodeEncodeError:
    pass
  return text.encode('utf-16', 'surrogatepass').decode('utf-16', 'replace')
