# SPDX-License-Identifier: Apache-2.0
"""Makes a conversation short enough and keeps its answers whole.

As ZAYA1-8B was trained: what fits is kept; else the end of the last thought is
cut; else earlier thoughts are dropped, and the end of the last one is cut; what
is too long without any thought is left out.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from pipelines import chat
from pipelines import tokenizer as tokenizer_lib
from pipelines.prepare.input import rows

_FIELDS = ('reasoning_content', 'thinking', 'reasoning')
_TAGS = re.compile(r'(<think>\s*)(.*?)(\s*</think>)', re.DOTALL)

Messages = list[Mapping[str, Any]]


def of(tokenizer: tokenizer_lib.Tokenizer, tokens: int) -> rows.Trim:
  """Returns what trims messages (with tools) to so many tokens.

  What it returns gives None for a conversation that cannot be trimmed.
  """

  def fits(messages: Messages, tools: Any) -> bool:
    turns = tokenizer.template.render_with_mask(messages, tools)
    return len(tokenizer.encode_chat(turns)[0]) <= tokens

  def trim(messages: Messages, tools: Any) -> Messages | None:
    if fits(messages, tools):
      return messages
    thoughts = [i for i, m in enumerate(messages) if _thought(m)]
    if not thoughts:
      return None
    last = thoughts[-1]
    silent = [
      _with_thought(m, '') if i in thoughts[:-1] else m
      for i, m in enumerate(messages)
    ]
    for each in (messages, silent):
      cut = _cut(each, last, lambda some: fits(some, tools))
      if cut is not None:
        return cut
    return None

  return trim


def _cut(
  messages: Messages, place: int, fits: Callable[[Messages], bool]
) -> Messages | None:
  """Keeps as much of the head of a thought as fits; None: not even none."""
  thought = _thought(messages[place])

  def kept(characters: int) -> Messages:
    message = _with_thought(messages[place], thought[:characters])
    return [*messages[:place], message, *messages[place + 1 :]]

  if not fits(kept(0)):
    return None
  low, high = 0, len(thought)  # The whole of it does not fit.
  while high - low > 1:
    middle = (low + high) // 2
    low, high = (middle, high) if fits(kept(middle)) else (low, middle)
  return kept(low)


def _thought(message: Mapping[str, Any]) -> str:
  """What the assistant thought before it answered; '': nothing."""
  if message['role'] != chat.ASSISTANT:
    return ''
  for field in _FIELDS:
    if isinstance(message.get(field), str):
      return message[field]
  content = message.get('content')
  found = _TAGS.search(content) if isinstance(content, str) else None
  return found[2] if found else ''


def _with_thought(message: Mapping[str, Any], thought: str) -> dict[str, Any]:
  for field in _FIELDS:
    if isinstance(message.get(field), str):
      return {**message, field: thought}
  content = _TAGS.sub(
    lambda found: found[1] + thought + found[3], message['content'], count=1
  )
  return {**message, 'content': content}
