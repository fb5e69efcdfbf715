# SPDX-License-Identifier: Apache-2.0
"""The data of a run: found, prepared, and refused where they do not fit."""

import dataclasses
import os
import types
import uuid
from fractions import Fraction

import fsspec
import numpy as np
import pytest

import pipelines.prepare
from pipelines import errors, tokenizer
from pipelines.shards import copies, manifest, mixture
from tests.support import recipes
from zaya_jax import config as config_lib
from zaya_jax.config.recipe import segments
from zaya_jax.data import corpus, sources

TEXT = 'the cat sat on the mat, and the dog sat by the door. ' * 20
_SHARES = """
[sources]
web = "data/web"
sums = "data/sums"
[[phase]]
name = "a"
tokens = 6400
mixture = { web = 1 }
lr = { from = 1e-3 }
[[phase]]
name = "b"
tokens = 1600
mixture = { web = 1, sums = 3 }
"""
_LENGTHS = """
[sources]
web = "DATA/web"
sums = "DATA/sums"
[[phase]]
name = "a"
tokens = 6400
mixture = { web = 1 }
lr = { from = 1e-3 }
flags = { "data.seq_len" = 64 }
[[phase]]
name = "b"
tokens = 1600
mixture = { sums = 1 }
flags = { "data.seq_len" = 96 }
"""


@pytest.fixture
def text(tmp_path):
  """The path of a small text."""
  path = tmp_path / 'text.txt'
  path.write_text(TEXT)
  return str(path)


def make_config(tmp_path, vocab_size=320, **data):
  data = {'record_tokens': 64, 'seq_len': 16, 'batch_size': 2, **data}
  return config_lib.Config(
    run_dir=str(tmp_path / 'run'),
    model=config_lib.ModelConfig(vocab_size=vocab_size),
    data=config_lib.DataConfig(**data),
  )


def prepare(text, output, **settings):
  pipelines.prepare.prepare(text, output, record_tokens=64, **settings)


def test_run_prepares_once_and_finds_its_shards_again(tmp_path, text):
  config = make_config(tmp_path, input=text)
  with corpus.Corpus(config) as first:
    assert next(first.loader)['tokens'].shape == (2, 16)
  os.remove(text)
  with corpus.Corpus(config) as second:
    assert second.sha256 == first.sha256
    (folder,) = second.held_out
    assert folder.text.bytes > 0 and second.notes == []


def test_other_held_out_text_is_other_data(tmp_path):
  hashes = []
  for end in '?!':  # Of a single document the tail is held out.
    (tmp_path / 'text.txt').write_text(TEXT + end)
    prepare(str(tmp_path / 'text.txt'), tmp_path / end)
    config = make_config(tmp_path, dir=(str(tmp_path / end),))
    with corpus.Corpus(config) as data:
      (made,) = data.loader.manifests
      hashes.append((data.sha256, made.splits['train'].shards[0].sha256))
  (one, train), (other, same) = hashes
  assert train == same and one != other


def windows(batches):
  """The tokens of all windows, without the rows that fill the last batch."""
  return np.concatenate(
    [batch['tokens'][batch['segment_ids'].any(axis=1)] for batch in batches]
  )


def test_each_folder_of_a_mixture_is_held_out_by_its_name(tmp_path, text):
  for folder in ('wiki', 'code', 'old/code', 'none'):
    fraction = 0.0 if folder == 'none' else 0.4
    prepare(text, tmp_path / folder, val_fraction=fraction)
  dirs = ['wiki@3', 'code', 'none@2', 'old/code@0.5']
  dirs = tuple(str(tmp_path / name) for name in dirs)
  config = make_config(tmp_path, dir=dirs)
  limited = dataclasses.replace(config, eval=config_lib.EvalConfig(batches=2))
  with corpus.Corpus(config) as data, corpus.Corpus(limited) as first:
    found = [(folder.name, folder.weight) for folder in data.held_out]
    code, old = str(tmp_path / 'code'), str(tmp_path / 'old/code')
    assert found == [('wiki', 3.0), (code, 1.0), (old, 0.5)]
    whole = windows(data.val_batches(data.held_out[0]))
    part = windows(first.val_batches(first.held_out[0]))
    assert len(whole) > len(part) == 4
    np.testing.assert_array_equal(part, whole[:4])
  (note,) = data.notes
  assert f'held out of {tmp_path}/none (' in note
  assert note.endswith('the other folders are evaluated')


def test_documents_are_masked_unless_told_otherwise(tmp_path):
  path = tmp_path / 'rows.jsonl'
  path.write_text(
    ''.join(f'{{"text": "document {i}, short"}}\n' for i in range(60))
  )
  for masked in (True, False):
    settings = {'mask_documents': masked, 'val_fraction': 0.3}
    config = make_config(tmp_path, input=str(path), **settings)
    with corpus.Corpus(config) as data:
      read = [next(data.loader) for _ in range(8)]
      for batches in (read, [*data.val_batches(data.held_out[0])]):
        most = max(batch['segment_ids'].max() for batch in batches)
        assert (most > 1) == masked


def test_held_out_text_whose_records_have_no_window_is_left_out_and_told(
  tmp_path, text
):
  for name, size in (('web', 64), ('sums', 96)):
    pipelines.prepare.prepare(
      text, tmp_path / name, record_tokens=size, val_fraction=0.2
    )
  (tmp_path / 'recipe.toml').write_text(_LENGTHS.replace('DATA', f'{tmp_path}'))
  config = make_config(tmp_path, seq_len=64, record_tokens=192)
  config = dataclasses.replace(config, recipe=str(tmp_path / 'recipe.toml'))
  for segment, own, other in zip(
    segments.segments(config), ('web', 'sums'), ('sums', 'web'), strict=True
  ):
    with corpus.Corpus(segments.segment_config(config, segment)) as data:
      [folder] = data.held_out
      assert folder.name == own and len(list(data.val_batches(folder)))
      [note] = data.notes
      assert note.startswith(f'{tmp_path}/{other} is not evaluated here: ')
      assert f'no window of {segment.seq_len} tokens' in note


def test_text_that_is_read_again_and_again_is_told(tmp_path):
  path = tmp_path / 'tiny.txt'
  path.write_text('Hello')
  # A step reads two windows, and there is one.
  for steps, told in ((49, 0), (50, 1)):
    config = make_config(tmp_path, input=str(path), val_fraction=0.0)
    config = dataclasses.replace(config, num_steps=steps)
    with corpus.Corpus(config) as data:
      notes = [note for note in data.notes if 'tokens to train on' in note]
    assert len(notes) == told
  # One token starts the document.
  assert 'has 6 tokens to train on, and 50 steps read them 100 t' in notes[0]


def test_nothing_held_out_is_told(tmp_path, text):
  config = make_config(tmp_path, input=text, val_fraction=0.0)
  with corpus.Corpus(config) as data:
    assert data.held_out == []
    (note,) = data.notes
    assert note.endswith('nothing is evaluated')


def test_folder_that_is_named_is_read_whatever_text_a_preset_names(
  tmp_path, text
):
  out = tmp_path / 'mine'
  prepare(text, out, tokenizer='bytes')
  config = make_config(
    tmp_path, dir=(str(out),), input='stdlib', val_fraction=0.1
  )
  with corpus.Corpus(config) as data:
    assert data.loader.manifests[0].settings.input == text
    assert data.notes[0] == (
      f'{out} is there (--data.dir), so --data.input=stdlib is not read'
    )
  # One that is not there yet is made of the text.
  other = make_config(tmp_path, dir=(str(tmp_path / 'new'),), input=text)
  with corpus.Corpus(other) as data:
    assert data.loader.manifests[0].settings.input == text


def test_folder_name_may_hold_an_at(tmp_path, text):
  config = make_config(tmp_path, input=text)
  config = dataclasses.replace(config, run_dir=str(tmp_path / 'me@home/run'))
  with corpus.Corpus(config):
    pass
  assert (tmp_path / 'me@home/run/data/manifest.json').exists()
  assert not (tmp_path / 'me').exists()


@pytest.mark.parametrize(
  'data', [{}, {'train_tokenizer': 300}], ids=['bytes', 'bpe']
)
def test_small_vocabulary_is_refused_before_preparing(tmp_path, text, data):
  config = make_config(tmp_path, vocab_size=200, input=text, **data)
  with pytest.raises(config_lib.UsageError, match='set it to 320'):
    corpus.Corpus(config)
  assert not (tmp_path / 'run').exists()


def test_small_vocabulary_for_prepared_shards_is_refused(tmp_path, text):
  prepare(text, tmp_path / 'shards')
  config = make_config(tmp_path, 200, dir=(str(tmp_path / 'shards'),))
  with pytest.raises(config_lib.UsageError, match='--model.vocab_size=200'):
    corpus.Corpus(config)


def test_other_tokenizer_than_that_of_the_shards_is_refused(tmp_path, text):
  prepare(text, tmp_path / 'shards')
  tokenizer.train_bpe([TEXT], 270).save(tmp_path)
  named = str(tmp_path / tokenizer.FILE_NAME)
  config = make_config(
    tmp_path, dir=(str(tmp_path / 'shards'),), tokenizer=named
  )
  with pytest.raises(errors.DataError, match='not the tokenizer of') as caught:
    corpus.Corpus(config)
  assert named in str(caught.value)


def test_exchanged_tokenizer_file_is_refused(tmp_path, text):
  prepare(text, tmp_path / 'shards', train_tokenizer=270)
  tokenizer.train_bpe(['other'], 270).save(tmp_path / 'shards')
  config = make_config(tmp_path, dir=(str(tmp_path / 'shards'),))
  with pytest.raises(errors.DataError, match='not the tokenizer of the shards'):
    corpus.Corpus(config)


def test_other_tokenizer_than_that_of_the_checkpoint_is_refused(tmp_path, text):
  with corpus.Corpus(make_config(tmp_path, input=text)) as data:
    data.check_tokenizer(data.tokenizer.sha256)
    with pytest.raises(config_lib.UsageError, match='another tokenizer'):
      data.check_tokenizer('0' * 64)


def test_run_goes_on_with_another_batch_size_where_it_was(tmp_path, text):
  with corpus.Corpus(make_config(tmp_path, input=text)) as data:
    for _ in range(3):
      next(data.loader)
    state = data.loader.state
    expected = [row for _ in range(4) for row in next(data.loader)['tokens']]
  assert state == 6
  with corpus.Corpus(make_config(tmp_path, batch_size=4)) as data:
    data.loader.state = state
    found = [row for _ in range(2) for row in next(data.loader)['tokens']]
    np.testing.assert_array_equal(found, expected)
    assert data.loader.state == 14
    data.loader.state = 0
    assert not np.array_equal(next(data.loader)['tokens'], expected[:4])


def test_held_out_loss_has_the_weights_of_the_whole_run_in_each_phase(tmp_path):
  config = recipes.config(tmp_path, _SHARES)
  for segment in segments.segments(config):
    own = segments.segment_config(config, segment)
    parts = [
      mixture.Part(directory=d, weight=w)
      for d, w in zip(sources.folders(own), segment.weights, strict=True)
    ]
    whole = sources.of_the_whole(own, parts)
    assert [part.directory for part in whole] == ['data/web', 'data/sums']
    assert [part.weight for part in whole] == [6400 + 400, 1200]


def test_source_of_a_recipe_may_have_an_at_in_its_name(tmp_path, text):
  for name in ('web@2', 'sums'):
    prepare(text, tmp_path / name)
  path = tmp_path / 'recipe.toml'
  path.write_text(
    _SHARES.replace('data/sums', str(tmp_path / 'sums')).replace(
      'data/web', str(tmp_path / 'web@2')
    )
  )
  config = make_config(tmp_path)
  config = dataclasses.replace(config, recipe=str(path))
  course = segments.course(config)
  config = dataclasses.replace(config, course=course)
  config = segments.segment_config(config, course.segments[0])
  with corpus.Corpus(config) as found:
    assert found.loader.directories[0] == str(tmp_path / 'web@2')
    next(found.loader)


def test_without_a_recipe_weights_are_those_of_the_flag():
  parts = [mixture.Part(directory='a', weight=Fraction(3))]
  assert sources.of_the_whole(config_lib.Config(), parts) == parts


@pytest.mark.parametrize(
  'limit, disk, notes',
  [(0.25, 2, 1), (1.01, 2, 0), (0, 2, 0), (0, 0.25, 1), (0.25, 0.5, 1)],
)
def test_shards_that_must_be_copied_again_and_again_are_told(
  tmp_path, text, monkeypatch, limit, disk, notes
):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  url = f'memory://{uuid.uuid4()}/a'
  prepare(text, tmp_path / 'a', val_fraction=0.0, shard_tokens=128)
  fsspec.filesystem('memory').put(f'{tmp_path}/a/', f'{url}/', recursive=True)
  shards = manifest.read(url).splits['train'].shards
  total = sum(shard.bytes for shard in shards) / 1e9
  config = make_config(tmp_path, dir=(url,), copies_gb=limit * total)
  usage = types.SimpleNamespace(total=disk * total * 1e9)
  monkeypatch.setattr(corpus.shutil, 'disk_usage', lambda path: usage)
  with corpus.Corpus(config) as found:
    told = [note for note in found.notes if 'behind URLs' in note]
  copies.keep_within(0)
  assert len(told) == notes
  assert all('75% of reads copy a shard first' in note for note in told)
  where = '--data.copies_gb=' if limit else f'the disk of {tmp_path}'
  assert all(where in note for note in told)
