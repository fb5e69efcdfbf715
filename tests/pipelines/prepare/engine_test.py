# SPDX-License-Identifier: Apache-2.0
"""A faster program is used for as long as it gives the same ids."""

import json
import sys
import types

import numpy as np
import pytest

from pipelines import errors, prepare, tokenizer
from pipelines.prepare import engine

TEXTS = ['one two <eos>', 'three\n', 'four five six', 'añ☃']


@pytest.fixture
def trained(monkeypatch):
  monkeypatch.setattr(engine, '_chosen', {})
  return tokenizer.train_bpe(TEXTS * 3, 300)


class Stub:
  """Encodes with the library that is compared with, and then `harm`s it."""

  def __init__(self, harm=lambda text, ids: ids):
    self.harm = harm
    self.json = None

  def module(self):
    return types.SimpleNamespace(Tokenizer=self)

  def from_json(self, content):
    self.json = json.loads(content)
    inner = tokenizer.from_json(
      json.dumps({**self.json, 'added_tokens': self.added}).encode(), 'stub'
    )
    return types.SimpleNamespace(encode_batch=lambda t: self.encode(inner, t))

  def encode(self, inner, texts):
    found = [
      self.harm(text, ids)
      for text, ids in zip(texts, inner.encode_batch(texts), strict=True)
    ]
    data = lambda array: types.SimpleNamespace(data=np.array(array))
    ends = np.cumsum([0, *map(len, found)])
    content = np.concatenate(found)
    layout = types.SimpleNamespace(content=data(content), offsets=data(ends))
    return types.SimpleNamespace(layout=layout)


def _install(monkeypatch, trained, **harm):
  stub = Stub(**harm)
  stub.added = json.loads(trained.serialized)['added_tokens']
  monkeypatch.setitem(sys.modules, 'gigatoken', stub.module())
  return stub


def test_fast_engine_gives_the_ids_of_the_tokenizer(monkeypatch, trained):
  stub = _install(monkeypatch, trained)
  chosen = engine.choose(trained, 'auto')
  assert chosen.name == 'gigatoken'
  # Or a special token that is spelled out would be read as one.
  assert stub.json['added_tokens'] == []
  for batch in (TEXTS, TEXTS[:1]):
    expected = trained.encode_batch(batch)
    for one, other in zip(chosen.encode_batch(batch), expected, strict=True):
      assert one.tolist() == other.tolist()


def test_engine_that_disagrees_at_the_start_is_not_used(
  monkeypatch, trained, caplog
):
  _install(monkeypatch, trained, harm=lambda text, ids: ids[: len(ids) - 1])
  assert engine.choose(trained, 'auto').name == 'tokenizers'
  assert 'gigatoken does not encode' in caplog.text
  with pytest.raises(errors.DataError, match='other ids than tokenizers'):
    engine._chosen.clear()
    engine.choose(trained, 'gigatoken')


def test_engine_that_disagrees_later_ends_it(monkeypatch, trained):
  _install(
    monkeypatch,
    trained,
    harm=lambda text, ids: ids[::-1] if text == 'three\n' else ids,
  )
  chosen = engine.choose(trained, 'auto')
  with pytest.raises(errors.DataError, match='begins with .three') as caught:
    for _ in range(len(TEXTS)):
      chosen.encode_batch(TEXTS)
  assert caught.value.exit_code == 2
  assert '--data.engine=tokenizers' in str(caught.value)


def test_engine_that_is_not_there_is_named(monkeypatch, trained, caplog):
  monkeypatch.setitem(sys.modules, 'gigatoken', None)
  assert engine.choose(trained, 'auto').name == 'tokenizers'
  assert not caplog.text
  engine._chosen.clear()
  with pytest.raises(errors.DataError, match='pip install gigatoken'):
    engine.choose(trained, 'gigatoken')


def test_bytes_need_no_engine():
  assert engine.choose(tokenizer.load('bytes'), 'auto').name == 'tokenizers'


def test_real_one_makes_the_same_folder(tmp_path, trained):
  pytest.importorskip('gigatoken')
  trained.save(tmp_path)
  path = tmp_path / 'a.jsonl'
  path.write_text(''.join(json.dumps({'text': t * 9}) + '\n' for t in TEXTS))
  made = [
    prepare.prepare(
      str(path),
      tmp_path / name,
      tokenizer=str(tmp_path),
      engine=name,
      record_tokens=64,
      val_fraction=0.3,
    )
    for name in ('tokenizers', 'gigatoken')
  ]
  assert made[0] == made[1]
