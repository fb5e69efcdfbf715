# SPDX-License-Identifier: Apache-2.0
"""Conversations are written as `transformers` writes them."""

import numpy as np
import pytest
import transformers

from pipelines import chat
from tests.support import chats

CASES = {
  'turns': {'messages': chats.CHAT},
  'question': {'messages': chats.CHAT[:1], 'add_generation_prompt': True},
  'system': {
    'messages': [{'role': 'system', 'content': 'Be brief.'}, *chats.CHAT],
  },
  'nothing': {
    'messages': [{**m, 'name': None, 'reasoning': 'x'} for m in chats.CHAT],
  },
}


def _pair(tmp_path, name, **options):
  folder = chats.tokenizer_folder(tmp_path / name, name, **options)
  return (
    chat.Template.load(folder),
    transformers.AutoTokenizer.from_pretrained(folder),
  )


@pytest.mark.parametrize('name', chats.ALL)
@pytest.mark.parametrize('case', CASES)
@pytest.mark.parametrize('as_file', [False, True])
def test_text_is_that_of_transformers(tmp_path, name, case, as_file):
  ours, theirs = _pair(tmp_path, name, as_file=as_file)
  expected = theirs.apply_chat_template(
    CASES[case]['messages'],
    tokenize=False,
    add_generation_prompt=CASES[case].get('add_generation_prompt', False),
  )
  assert ours.render(**CASES[case]) == expected
  assert len(expected) > 20


def test_tools_and_calls_are_those_of_transformers(tmp_path):
  ours, theirs = _pair(tmp_path, 'llama')
  tools = [{'type': 'function', 'function': {'name': 'f', 'é': '<>"'}}]
  calls = [{'type': 'function', 'function': {'name': 'f', 'arguments': {}}}]
  messages = [
    chats.CHAT[0],
    {'role': 'assistant', 'content': None, 'tool_calls': calls * 4},
  ]
  expected = theirs.apply_chat_template(messages, tools=tools, tokenize=False)
  assert ours.render(messages, tools=tools) == expected
  assert expected.count('"arguments"') == 3


def test_learnt_text_is_that_of_transformers(tmp_path):
  ours, theirs = _pair(tmp_path, 'generation')
  out = theirs.apply_chat_template(
    chats.CHAT, return_dict=True, return_assistant_tokens_mask=True
  )
  ids = np.array(out['input_ids'])[np.array(out['assistant_masks']) == 1]
  pieces = ours.render_with_mask(chats.CHAT)
  assert theirs.decode(ids) == ''.join(
    text for text, counts in pieces if counts
  )


def test_without_a_template_both_refuse(tmp_path):
  folder = chats.tokenizer_folder(tmp_path, 'gemma')
  (folder / 'tokenizer_config.json').unlink()
  with pytest.raises(ValueError, match='chat_template is not set'):
    transformers.AutoTokenizer.from_pretrained(folder).apply_chat_template(
      chats.CHAT
    )
  with pytest.raises(ValueError, match='has no chat template'):
    chat.Template.load(folder)
