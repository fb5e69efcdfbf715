# SPDX-License-Identifier: Apache-2.0
"""--mode=chat: what is typed, what is answered, and what is kept of it."""

import io
import json

import pytest

from tests.support import serving, tuning
from zaya_jax import main
from zaya_jax.inference import conversation
from zaya_jax.inference import load as load_lib
from zaya_jax.inference.serve import chat, start


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  made = tmp_path_factory.mktemp('model') / 'hf'
  tuning.model_folder(made)
  return made


@pytest.fixture(scope='module')
def model(folder):
  loaded = load_lib.load(str(folder))
  return serving.with_tokenizer(serving.model(), loaded.tokenizer)


@pytest.fixture
def run(folder, model, monkeypatch, capsys):
  """Types lines; (exit code, stdout, stderr)."""
  monkeypatch.setattr(start, 'model', lambda config: model)
  monkeypatch.setattr(start.pieces_lib, 'SIZES', (64,))

  def go(typed, *args):
    monkeypatch.setattr('sys.stdin', io.StringIO(typed))
    words = ['--mode=chat', f'--source={folder}', '--serve.context=256']
    how = ['--generate.temperature=1', '--generate.max_tokens=9']
    code = main.main(['zaya_jax', *words, *how, *args])
    return code, *capsys.readouterr()

  return go


def expected(model, *lines, tokens=9):
  """The answers, each to the conversation so far."""
  messages, answers = [], []
  for line in lines:
    messages.append({'role': 'user', 'content': line})
    ids = conversation.encode(model.tokenizer, messages)
    how = {'temperature': 1.0, 'top_p': 0.95, 'seed': len(messages)}
    answers += model.generate([ids], tokens, **how)
    messages.append({'role': 'assistant', 'content': answers[-1]})
  return ''.join(f'{answer}\n' for answer in answers)


def test_conversation_is_kept(run, model):
  code, out, _ = run('Say 3.\n\n  And again? \n')
  assert (code, out) == (0, expected(model, 'Say 3.', 'And again?'))
  again = expected(model, 'Say 3.') + expected(model, 'And again?')
  assert out != again
  assert run('Say 3.\n/new\nAnd again?\n')[1] == again
  assert run('Say 3.\n/end\nAnd again?\n')[1] == expected(model, 'Say 3.')


def test_what_has_no_room_is_forgotten_and_told(run, model):
  long = 'x' * 120
  code, out, err = run(f'{long}\n{long}\n{"y" * 300}\nSay 3.\n')
  assert code == 0
  assert out == expected(model, long) * 2 + expected(model, 'Say 3.')
  assert 'the oldest message and its answer are forgotten' in err
  assert 'the message has 3' in err and '--serve.context=256; it is' in err


def test_interrupt_ends_the_answer_alone(run, model, monkeypatch):
  shown = []

  def show(text='', end='\n', flush=False):
    shown.append(text + end)
    if len(shown) == 1:
      raise KeyboardInterrupt

  monkeypatch.setattr(chat, 'print', show, raising=False)
  code, _, _ = run('Say 3.\n/new\nSay 3.\n')
  assert code == 0
  assert ''.join(shown).endswith(expected(model, 'Say 3.'))


def test_model_without_a_template_is_refused(run, folder, monkeypatch):
  monkeypatch.setattr(start, 'model', lambda config: serving.model())
  code, _, err = run('Say 3.\n')
  assert code == 2 and 'has no chat template; put' in err


def test_context_is_no_longer_than_the_model_was_made_for(folder, capsys):
  of = load_lib.load(str(folder))
  most = json.loads((folder / 'config.json').read_text())
  most = most['max_position_embeddings']
  settings = chat.config_lib.ServeConfig(context=most + 1)
  assert start.context(of, settings) == most
  assert f'not --serve.context={most + 1}' in capsys.readouterr().err
