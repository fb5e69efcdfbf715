# SPDX-License-Identifier: Apache-2.0
"""Thoughts are cut, answers never are."""

import json

import pytest

from pipelines import prepare, tokenizer
from pipelines.prepare import trim
from tests.support import chats

ROOM = 90
TEMPLATE = (
  '{% for m in messages %}<|im_start|>{{ m.role[0] }}{% if m.thinking %}'
  '[{{ m.thinking }}]{% endif %}{{ m.content }}<|im_end|>{% endfor %}'
  '{% if add_generation_prompt %}<|im_start|>a{% endif %}'
)


@pytest.fixture
def folder(tmp_path):
  made = chats.tokenizer_folder(tmp_path / 'tokenizer')
  (made / 'chat_template.jinja').write_text(TEMPLATE)
  return made


def user(text='q'):
  return {'role': 'user', 'content': text}


def thinks(thought, answer):
  return {'role': 'assistant', 'thinking': thought, 'content': answer}


def tags(thought, answer):
  text = f'<think>\n{thought}\n</think>\n\n{answer}'
  return {'role': 'assistant', 'content': text}


@pytest.fixture
def trimmed(folder):
  """(messages) → trimmed messages and their tokens."""
  named = tokenizer.load(str(folder))

  def call(messages):
    found = trim.of(named, ROOM)(messages, None)
    if found is None:
      return None, 0
    turns = named.template.render_with_mask(found, None)
    return found, len(named.encode_chat(turns)[0])

  return call


def test_what_fits_stays(trimmed):
  messages = [user(), thinks('t' * 20, 'a')]
  assert trimmed(messages)[0] == messages


@pytest.mark.parametrize('kind', [thinks, tags])
def test_last_thought_loses_its_end_and_nothing_else(trimmed, kind):
  thought = ''.join(chr(ord('a') + i % 26) for i in range(500))
  messages = [user(), kind('early', 'one'), user(), kind(thought, 'answer')]
  found, tokens = trimmed(messages)
  assert tokens == ROOM
  assert found[:3] == messages[:3]
  kept = trim._thought(found[3])
  assert thought.startswith(kept) and len(kept) > 10
  assert found[3] == kind(kept, 'answer')


def test_earlier_thoughts_go_where_that_is_not_enough(trimmed):
  messages = [
    user(),
    thinks('e' * 200, 'one'),
    user(),
    thinks('l' * 200, 'two'),
  ]
  found, tokens = trimmed(messages)
  assert tokens == ROOM
  assert found[1] == thinks('', 'one')
  assert found[3]['content'] == 'two'
  assert 10 < len(found[3]['thinking']) < 200


def test_answers_that_are_too_long_leave_it_out(trimmed):
  assert trimmed([user(), thinks('t' * 9, 'a' * 200)])[0] is None
  assert trimmed([user('q' * 200), {'role': 'assistant', 'content': 'a'}]) == (
    None,
    0,
  )


def test_shards_hold_trimmed_conversations_and_name_the_others(
  tmp_path, folder
):
  rows = [
    {'messages': [user(f'{i}'), thinks('t' * (i * 20), 'answer')]}
    for i in range(12)
  ]
  rows.append({'messages': [user(), thinks('', 'a' * 500)]})
  path = tmp_path / 'a.jsonl'
  path.write_text('\n'.join(map(json.dumps, rows)))
  settings = {
    'tokenizer': str(folder),
    'record_tokens': 128,
    'window_tokens': 128,
    'val_fraction': 0.0,
  }
  whole = prepare.prepare(str(path), tmp_path / 'whole', **settings)
  data = prepare.prepare(str(path), tmp_path / 'out', trim=True, **settings)
  assert whole.splits['train'].documents == 13
  assert data.splits['train'].documents == 12
  assert data.skipped == {'a.jsonl:13': 'its answers alone are too long'}
  said = 12 * (len('answer') + 1)
  assert data.splits['train'].counted_tokens > said
