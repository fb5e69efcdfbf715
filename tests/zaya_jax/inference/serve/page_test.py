# SPDX-License-Identifier: Apache-2.0
"""The page in a browser: what it asks for, shows and lets one stop."""

import os
import pathlib

import pytest

from tests.support import chromium, serving, tuning
from zaya_jax.inference import conversation
from zaya_jax.inference import load as load_lib

pytestmark = [
  pytest.mark.long,
  pytest.mark.skipif(
    not chromium.PROGRAM, reason='no Chromium: apt-get install chromium'
  ),
]
TEXT = "at('text').value = {!r}; at('form').requestSubmit();"
IDLE = 'running === null'


browser = pytest.fixture(chromium.one, scope='module')


@pytest.fixture(scope='module')
def model(tmp_path_factory):
  folder = tmp_path_factory.mktemp('model') / 'hf'
  tuning.model_folder(folder)
  tokenizer = load_lib.load(str(folder)).tokenizer
  return serving.with_tokenizer(serving.model(), tokenizer)


@pytest.fixture(scope='module')
def engine(model):
  made = serving.engine(model, pieces=(64,))
  yield made
  made.close()


def shown(browser):
  return browser.run('[...at("talk").children].map(x => x.innerText)')


def settle(browser):
  """Greedy, with short answers."""
  browser.run('at("temperature").value = 0; at("max_tokens").value = 12')


def test_conversation_is_shown_and_kept(browser, model, engine, tmp_path):
  messages, expected = [], []
  with serving.hosted(engine, model.tokenizer) as url:
    for width in (1280, 400):
      for dark in (False, True):
        browser.open(url, width=width, dark=dark, whole=False)
        settle(browser)
        assert browser.run('document.title') == 'tiny'
        messages, expected = [], []
        for line in ('Say 3 twice.', '<b>And</b> again?'):
          browser.run(TEXT.format(line))
          browser.wait(IDLE)
          messages.append({'role': 'user', 'content': line})
          ids = conversation.encode(model.tokenizer, messages)
          [said] = model.generate([ids], 12)
          messages.append({'role': 'assistant', 'content': said})
          expected += [line, said]
        assert browser.run('messages') == messages
        found = browser.run('[...at("talk").children].map(x=>x.textContent)')
        assert found == expected
        wide = browser.run('document.documentElement.scrollWidth')
        assert wide <= width
        assert browser.faults == []
        assert all(r.startswith((url, 'about:')) for r in browser.requests)
        folder = pathlib.Path(os.environ.get('ZAYA_PICTURES', tmp_path))
        browser.screenshot(folder / f'page_{width}_{dark}.png', 900)


def test_answer_is_stopped(browser, model, engine):
  with serving.hosted(engine, model.tokenizer) as url:
    browser.open(url, whole=False)
    browser.run(TEXT.format('Go on.'))
    browser.run("at('form').requestSubmit()")  # The button is Stop now.
    browser.wait(IDLE)
    assert browser.run("at('send').textContent") == 'Send'
    browser.run("at('new').click()")
    assert shown(browser) == [] and browser.run('messages') == []
    browser.wait(IDLE)
  assert engine.busy == 0


def test_model_without_a_template_continues_texts(browser, engine):
  with serving.hosted(engine, serving.BYTES) as url:
    browser.open(url, whole=False)
    settle(browser)
    browser.run(TEXT.format('def f('))
    browser.wait(IDLE)
    note, said, _ = shown(browser)
    assert 'No chat template' in note and said == 'def f('
    assert browser.run('messages.length') == 2


def test_key_is_asked_for(browser, model, engine):
  with serving.hosted(engine, model.tokenizer, keys=('secret',)) as url:
    browser.open(url, whole=False)
    assert 'key is missing' in browser.run("at('name').textContent")
    browser.run("at('key').value = 'secret'; greet()")
    browser.wait("document.title === 'tiny'")
    settle(browser)
    browser.run("at('key').value = 'wrong'")
    browser.run(TEXT.format('Hello?'))
    browser.wait(IDLE)
    assert 'key is missing or wrong' in shown(browser)[-1]
    assert browser.run("at('text').value") == 'Hello?'  # To be said again.
