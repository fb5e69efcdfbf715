# SPDX-License-Identifier: Apache-2.0

import json

import pytest

from pipelines import chat, errors
from tests.support import chats

UNSTABLE = """\
{% for m in messages %}[{{ m.role }}]{{ m.content if loop.last or m.role ==
'user' else '...' }}{% endfor %}{% if add_generation_prompt %}[assistant]\
{% endif %}"""


def _template(tmp_path, name='chatml', **options):
  return chat.Template.load(chats.tokenizer_folder(tmp_path, name, **options))


def _with(tmp_path, source):
  folder = chats.tokenizer_folder(tmp_path, 'chatml')
  (folder / chat.TEMPLATE_NAME).write_text(source)
  return chat.Template.load(folder)


def test_a_file_of_its_own_wins(tmp_path):
  assert _with(tmp_path, 'file').render(chats.CHAT) == 'file'


@pytest.mark.parametrize('name', chats.ALL)
def test_pieces_are_the_text(tmp_path, name):
  template = _template(tmp_path, name)
  pieces = template.render_with_mask(chats.CHAT)
  assert ''.join(text for text, _ in pieces) == template.render(chats.CHAT)
  assert [counts for _, counts in pieces] in (
    [False, True, False, True, False],
    [False, True, False, True],
  )


@pytest.mark.parametrize(
  'name, learnt',
  [
    ('chatml', ['☃ "one"\n<|im_end|>', 'two<|im_end|>']),
    ('generation', ['☃ "one"<|im_end|>', 'two<|im_end|>']),
    ('gemma', ['☃ "one"<end_of_turn>', 'two<end_of_turn>']),
    ('llama', ['☃ "one"<|eot_id|>', 'two<|eot_id|>']),
  ],
)
def test_the_words_and_the_end_of_turn_count(tmp_path, name, learnt):
  pieces = _template(tmp_path, name).render_with_mask(chats.CHAT)
  assert [text for text, counts in pieces if counts] == learnt


def test_nobody_spells_what_marks_a_turn(tmp_path):
  words = '{% generation %}x{% endgeneration %}'
  messages = [{'role': 'user', 'content': words}, chats.CHAT[3]]
  pieces = _template(tmp_path, 'generation').render_with_mask(messages)
  assert [text for text, counts in pieces if counts] == ['two<|im_end|>']


@pytest.mark.parametrize(
  'name, token',
  [
    ('chatml', '<|im_end|>'),
    ('gemma', '<end_of_turn>'),
    ('llama', '<|eot_id|>'),
  ],
)
def test_end_of_turn(tmp_path, name, token):
  assert _template(tmp_path, name).end_of_turn == token


def test_longest_token_that_fits_ends_a_turn():
  template = chat.Template(
    name='mine',
    source='{% for m in messages %}{{ m.content }}<end>2{% endfor %}',
    special_tokens={},
    added_tokens=frozenset({'<end>', '<end>2', '<end>23', '2'}),
  )
  assert template.end_of_turn == '<end>2'


def test_white_space_may_stand_before_the_end_of_a_turn():
  template = chat.Template(
    name='mine',
    source='{% for m in messages %}{{ m.content }} \n<end>{% endfor %}',
    special_tokens={},
    added_tokens=frozenset({'<end>'}),
  )
  assert template.end_of_turn == '<end>'


def test_config_says_what_a_special_token_is_before_the_map(tmp_path):
  folder = chats.tokenizer_folder(tmp_path, 'gemma')
  tokens = {'bos_token': '<pad>', 'sep_token': '<eos>'}
  (folder / 'special_tokens_map.json').write_text(json.dumps(tokens))
  found = chat.Template.load(folder).special_tokens
  assert (found['bos_token'], found['sep_token']) == ('<bos>', '<eos>')


def test_without_a_template_chatml_needs_its_tokens(tmp_path):
  folder = chats.tokenizer_folder(tmp_path / 'a')
  named = chat.Template.load(folder)
  (folder / 'tokenizer_config.json').unlink()
  default = chat.Template.load(folder)
  assert default.render(chats.CHAT, True) == named.render(chats.CHAT, True)
  other = chats.tokenizer_folder(tmp_path / 'b', 'gemma')
  (other / 'tokenizer_config.json').write_text('{}')
  with pytest.raises(errors.DataError, match='has no chat template; put a'):
    chat.Template.load(other)


def test_named_templates_and_tools(tmp_path):
  folder = chats.tokenizer_folder(tmp_path, 'chatml')
  named = [
    {'name': 'default', 'template': 'plain'},
    {'name': 'tool_use', 'template': '{{ tools | tojson }}'},
  ]
  (folder / chat.CONFIG_NAME).write_text(json.dumps({'chat_template': named}))
  template = chat.Template.load(folder)
  assert template.render(chats.CHAT) == 'plain'
  assert template.render(chats.CHAT, tools=[{'é': '<'}]) == '[{"é": "<"}]'


@pytest.mark.parametrize(
  'source, reason',
  [
    ('{{ raise_exception("no system turn") }}', 'refuses .*no system turn'),
    ('{{ messages[0].content + 1 }}', 'refuses the conversation'),
    ('{{ nothing.there }}', 'refuses the conversation'),
    ('a\n{% for %}', r'is not one: .* \(line 2 of the template'),
    ('a\n\n{{ 1 / 0 }}\nb', r'division by zero \(line 3 of the template'),
    ('{{ "".__class__.__mro__ }}', 'unsafe|refuses'),
    ('{{ messages.append(1) }}', 'refuses the conversation'),
    ('{% set n = namespace() %}{% set n.__class__ = 1 %}', 'may not set'),
  ],
)
def test_template_that_fails_is_a_sentence(tmp_path, source, reason):
  with pytest.raises(errors.DataError, match=reason) as caught:
    _with(tmp_path, source).render(chats.CHAT)
  assert caught.value.exit_code == 2


def test_turn_that_changes_with_what_follows_is_refused(tmp_path):
  template = _with(tmp_path, UNSTABLE)
  assert len(template.render_with_mask(chats.CHAT[:2])) == 2
  with pytest.raises(errors.DataError, match='turn 2 otherwise'):
    template.render_with_mask(chats.CHAT)


def test_hash_follows_what_is_written(tmp_path):
  hashes = {
    _template(tmp_path / f'{i}', name, as_file=as_file).sha256
    for i, (name, as_file) in enumerate(
      [('chatml', False), ('chatml', True), ('generation', False)]
    )
  }
  assert len(hashes) == 2


@pytest.mark.parametrize('content', ['{', '[1]', '{"chat_template": [1]}'])
def test_damaged_config_is_a_sentence(tmp_path, content):
  folder = chats.tokenizer_folder(tmp_path)
  (folder / chat.CONFIG_NAME).write_text(content)
  with pytest.raises(errors.DataError, match='cannot be read'):
    chat.Template.load(folder)
