# SPDX-License-Identifier: Apache-2.0
"""Rows of preferences: a prompt, the answer that was chosen, the rejected one.

An answer is a text or a list of messages; the prompt is one too, or stands
under `messages`, or is what both answers, written out whole, begin with.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from pipelines import chat, errors

CHOSEN, REJECTED, PROMPT = 'chosen', 'rejected', 'prompt'
TOOLS = 'tools'
BESIDE = (REJECTED, PROMPT, TOOLS)  # Of a row that has what was chosen.

Messages = list[Any]


def is_pair(row: Mapping[str, Any]) -> bool:
  """Whether a row has two answers."""
  return row.get(CHOSEN) is not None and row.get(REJECTED) is not None


def read(
  row: Mapping[str, Any], messages: Sequence[str], where: str
) -> tuple[Messages, Messages, Messages]:
  """The prompt and both answers of a row, as messages that nobody has checked.

  Args:
    row: that `is_pair`.
    messages: names of fields that may hold the prompt.
    where: the place of the row.

  Raises:
    DataError: if there is no prompt, or an answer does not end as the
      assistant's.
  """
  answers = [
    _messages(row[name], chat.ASSISTANT, name, where)
    for name in (CHOSEN, REJECTED)
  ]
  field = next((n for n in (PROMPT, *messages) if row.get(n) is not None), None)
  prompt = _messages(row[field], 'user', field, where) if field else []
  if not prompt or all(a[: len(prompt)] == prompt for a in answers):
    same = 0
    shortest = min(map(len, answers)) - 1  # One message is the answer.
    while same < shortest and answers[0][same] == answers[1][same]:
      same += 1
    prompt = prompt or answers[0][:same]
    answers = [a[len(prompt) :] for a in answers]
  if not prompt:
    raise errors.DataError(
      f'{where}: a pair needs a prompt: a field {PROMPT!r} or {messages[0]!r}, '
      f'or messages with which both {CHOSEN!r} and {REJECTED!r} begin.'
    )
  for name, answer in zip((CHOSEN, REJECTED), answers, strict=True):
    last = answer[-1] if answer else None
    role = last.get('role', last.get('from')) if isinstance(last, dict) else ''
    if role not in (chat.ASSISTANT, 'gpt'):
      raise errors.DataError(
        f'{where}: {name!r} does not end with what the assistant says.'
      )
  return prompt, answers[0], answers[1]


def _messages(value: Any, role: str, name: str, where: str) -> Messages:
  if isinstance(value, str):
    return [{'role': role, 'content': value}]
  if not isinstance(value, list):
    raise errors.DataError(
      f'{where}: field {name!r} is neither a text nor a list of messages.'
    )
  return list(value)


def only_answer(turns: chat.Turns, before: int) -> chat.Turns:
  """Turns of which the first so many that count do so no more."""
  found, seen = [], 0
  for text, counts in turns:
    seen += counts
    found.append((text, counts and seen > before))
  return tuple(found)
