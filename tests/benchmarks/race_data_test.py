# SPDX-License-Identifier: Apache-2.0
"""The data of a race: both splits where they belong, the same for all."""

import dataclasses
import json

import numpy as np
import pytest

from benchmarks import race_data
from pipelines import loader
from pipelines.shards import manifest
from zaya_jax import config as config_lib

TRAIN = [f'def f{i}(x):\n  return x + {i}\n' * 20 for i in range(30)]
HELD_OUT = ['class A:\n  pass\n' * 40, 'class B:\n  pass\n' * 40, 'never read']


def made(tmp_path_factory, train=TRAIN):
  corpus = tmp_path_factory.mktemp('corpus')
  for name, texts in (('train', train), ('held_out', HELD_OUT)):
    lines = ''.join(json.dumps({'text': text}) + '\n' for text in texts)
    (corpus / f'{name}.jsonl').write_text(lines)
  (corpus / 'manifest.json').write_text('{"megabytes": 0}')
  folder = tmp_path_factory.mktemp('race')
  race_data.make(corpus, folder, 270, held_out_bytes=700)
  return folder


@pytest.fixture(name='folder', scope='module')
def _folder(tmp_path_factory):
  return made(tmp_path_factory)


def config():
  data = config_lib.DataConfig(seq_len=16, batch_size=4)
  model = config_lib.ModelConfig(vocab_size=270)
  return dataclasses.replace(config_lib.Config(), data=data, model=model)


def texts_of(folder, split):
  """The documents of a split, as its tokens spell them."""
  tokenizer = manifest.load_tokenizer(folder / race_data.SHARDS)
  batches = loader.eval_batches(
    folder / race_data.SHARDS, split=split, seq_len=16, batch_size=1
  )
  ids = np.concatenate([b['tokens'][b['segment_ids'] > 0] for b in batches])
  starts = np.flatnonzero(ids == tokenizer.bos_id)
  parts = np.split(ids, starts)[1:]
  return [tokenizer.decode(part[1:].tolist()) for part in parts]


def test_each_split_has_its_texts(folder):
  assert set(texts_of(folder, 'train')) == set(TRAIN)
  # Whole documents, until there are 700 bytes; the last token is no input.
  found = {text[:9] for text in texts_of(folder, 'val')}
  assert found == {text[:9] for text in HELD_OUT[:2]}


def test_facts_name_the_corpus_and_sizes(folder):
  facts = race_data.facts(folder)
  assert facts['corpus'] == {'megabytes': 0}
  assert facts['held_out_bytes'] == sum(len(text) for text in HELD_OUT[:2])
  each = facts['held_out_bytes'] / facts['held_out_tokens']
  assert race_data.bytes_per_token(folder) == pytest.approx(each, rel=0.02)


def test_the_same_text_elsewhere_has_the_same_hash(folder, tmp_path_factory):
  name = lambda folder: race_data.facts(folder)['shards_sha256']
  assert name(made(tmp_path_factory)) == name(folder)
  assert name(made(tmp_path_factory, [*TRAIN[:-1], 'x = 1'])) != name(folder)


def test_peers_get_the_windows_that_the_trainer_evaluates(folder):
  train, held_out = race_data.windows(folder, config())
  windows = np.load(train)
  assert windows.shape[1] == 17 and windows.dtype == np.uint16
  found = np.load(held_out)
  batches = list(
    loader.eval_batches(
      folder / race_data.SHARDS, seq_len=16, batch_size=4, max_batches=0
    )
  )
  for name in ('tokens', 'targets', 'weights'):
    np.testing.assert_array_equal(found[name], [b[name] for b in batches])
  # Each token is a target once, but the first.
  tokens = race_data.facts(folder)['held_out_tokens']
  assert found['weights'].sum() == tokens - 1
  # Others are other files; the same are not made again.
  before = held_out.stat().st_mtime_ns
  assert race_data.windows(folder, config())[1].stat().st_mtime_ns == before
  wider = dataclasses.replace(config().data, batch_size=2)
  other = dataclasses.replace(config(), data=wider)
  assert race_data.windows(folder, other)[1] != held_out


def test_what_is_there_needs_no_corpus_and_else_it_is_asked_for(
  folder, tmp_path
):
  race_data.make(tmp_path / 'none', folder, 270, 700)
  with pytest.raises(SystemExit, match='corpus --megabytes=500 --output='):
    race_data.make(tmp_path / 'none', tmp_path / 'race', 270, 700)
