# SPDX-License-Identifier: Apache-2.0
"""The tokens of a conversation; what people write is only ever text."""

import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from pipelines import tokenizer as tokenizer_lib

# What no message can spell.
_MARK = f'\0{secrets.token_hex(8)}\0'


def encode(
  tokenizer: tokenizer_lib.Tokenizer, messages: Sequence[Mapping[str, Any]]
) -> np.ndarray:
  """The prompt that asks for the assistant's next words.

  It is read with the special tokens that the chat template writes. One that a
  message spells out is split like other text: nobody can end a turn, or speak
  as another role, from within a message.

  Args:
    tokenizer: of the model.
    messages: what the template reads, such as "role" and "content".

  Returns:
    [L] int32.

  Raises:
    DataError: if there is no template, or it refuses the conversation.
  """
  template = tokenizer.template
  names = sorted(template.added_tokens, key=len, reverse=True)
  special = re.compile('|'.join(map(re.escape, names)) or r'(?!)')
  spelled: list[str] = []

  def hide(match: re.Match) -> str:
    spelled.append(match[0])
    return f'{_MARK}{len(spelled) - 1}{_MARK}'

  hidden = [
    _each_text(message, lambda text: special.sub(hide, text))
    for message in messages
  ]
  written = template.render(hidden, add_generation_prompt=True)
  pieces = re.split(f'{_MARK}([0-9]+){_MARK}', written)
  ids = [
    tokenizer.encode(spelled[int(piece)])
    if i % 2
    else tokenizer.encode_chat([(piece, False)])[0]
    for i, piece in enumerate(pieces)
    if piece
  ]
  return np.concatenate([*ids, np.zeros(0, np.int32)]).astype(np.int32)


def _each_text(value: Any, change: Callable[[str], str]) -> Any:
  """JSON with each of its texts changed; names are not."""
  if isinstance(value, str):
    return change(value)
  if isinstance(value, Mapping):
    return {key: _each_text(item, change) for key, item in value.items()}
  if isinstance(value, list):
    return [_each_text(item, change) for item in value]
  return value


def clean(text: str) -> str:
  """Half a surrogate pair, which JSON can spell, becomes U+FFFD."""
  return text.encode('utf-16', 'surrogatepass').decode('utf-16', 'replace')
