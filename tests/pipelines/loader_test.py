# SPDX-License-Identifier: Apache-2.0

import collections
import os
import pathlib
import shutil
import subprocess
import sys
from fractions import Fraction

import grain
import numpy as np
import pytest
from array_record.python import array_record_module

from pipelines import errors, loader, order, prepare, tokenizer
from pipelines.shards import manifest, mixture

ROOT = pathlib.Path(__file__).parents[2]
L = 16


def _records(folder, split):
  """Tokens of each record, without padding, read without our loader."""
  data = manifest.load(folder)
  rows = []
  for shard in data.splits[split].shards:
    reader = array_record_module.ArrayRecordReader(str(folder / shard.name))
    rows += [np.frombuffer(r, data.dtype) for r in reader.read_all()]
    reader.close()
  last = data.splits[split].tokens - (len(rows) - 1) * data.record_tokens
  return [*rows[:-1], rows[-1][:last]]


def _expected(folder, split):
  """Rows of all windows in order, worked out token by token."""
  rows = []
  for record in _records(folder, split):
    for start in range(0, len(record) - 1, L):
      row = {'tokens': [], 'targets': [], 'weights': [], 'segment_ids': [],
             'positions': []}  # fmt: skip
      segment = position = 0
      for i in range(start, start + L):
        here, after = i < len(record), i + 1 < len(record)
        if here and (i == start or record[i] == 257):
          segment, position = segment + 1, 0
        row['tokens'].append(int(record[i]) if here else 256)
        row['targets'].append(int(record[i + 1]) if after else 256)
        row['weights'].append(float(after))
        row['segment_ids'].append(segment if here else 0)
        row['positions'].append(position if here else 0)
        position += 1
      rows.append(row)
  return rows


def _rows(batches):
  """Batches cut into rows of plain lists."""
  return [
    {name: array[i].tolist() for name, array in batch.items()}
    for batch in batches
    for i in range(len(batch['tokens']))
  ]


def _train(shards, batch_size=2, seed=3, **kwargs):
  return loader.make_train_loader(
    [str(shards)], seq_len=L, batch_size=batch_size, seed=seed, **kwargs
  )


def test_folder_may_have_an_at_in_its_name(shards, tmp_path):
  named = tmp_path / 'web@2'
  shutil.copytree(shards, named)
  part = mixture.Part(directory=str(named), weight=Fraction(1))
  with loader.make_train_loader(
    [part], seq_len=L, batch_size=2, seed=3
  ) as batches:
    assert batches.directories == (str(named),)
    with _train(shards) as same:
      assert _take(batches, 3) == _take(same, 3)


def _take(batches, count):
  return _rows(next(batches) for _ in range(count))


def test_evaluation_gives_every_window_in_order(shards):
  for split in ('train', 'val'):
    expected = _expected(shards, split)
    batches = list(
      loader.eval_batches(shards, split=split, seq_len=L, batch_size=4)
    )
    assert all(batch['tokens'].shape == (4, L) for batch in batches)
    rows = _rows(batches)
    assert rows[: len(expected)] == expected
    assert all(sum(r['weights']) == 0 for r in rows[len(expected) :])
    assert len(rows) - len(expected) < 4


def test_evaluation_counts_every_token_but_the_first_of_a_record(shards):
  split = manifest.load(shards).splits['val']
  batches = loader.eval_batches(shards, seq_len=L, batch_size=3)
  counted = sum(batch['weights'].sum() for batch in batches)
  assert counted == split.tokens - split.records


def test_evaluation_is_shared_by_processes(shards):
  whole = list(loader.eval_batches(shards, seq_len=L, batch_size=4))
  parts = [
    list(
      loader.eval_batches(
        shards, seq_len=L, batch_size=4, shard_index=i, shard_count=2
      )
    )
    for i in range(2)
  ]
  for batch, one, two in zip(whole, *parts, strict=True):
    np.testing.assert_array_equal(batch['tokens'][:2], one['tokens'])
    np.testing.assert_array_equal(batch['tokens'][2:], two['tokens'])


def test_evaluation_can_stop_early(shards):
  batches = loader.eval_batches(shards, seq_len=L, batch_size=2, max_batches=3)
  assert len(list(batches)) == 3


def test_text_is_evaluated_like_a_document():
  ids = [257, *range(97, 97 + 20)]
  text = bytes(ids[1:]).decode()
  batches = loader.text_batches(
    text, tokenizer.load('bytes'), seq_len=L, batch_size=3
  )
  (batch,) = batches
  assert batch['tokens'].shape == (3, L)
  assert batch['tokens'].ravel()[:21].tolist() == ids
  assert batch['weights'].sum() == 20
  assert batch['segment_ids'].max() == 1


def test_empty_text_is_refused():
  with pytest.raises(errors.DataError, match='empty'):
    loader.text_batches('', tokenizer.load('bytes'), seq_len=4, batch_size=1)


def test_one_integer_resumes(shards):
  with _train(shards) as batches:
    _take(batches, 5)
    state = batches.state
    expected = _take(batches, 40)
  assert state == 10
  with _train(shards) as batches:
    _take(batches, 2)
    batches.state = state
    assert batches.state == 10
    assert _take(batches, 40) == expected


def test_restored_iterator_repeats_at_every_step(shards):
  class Iterator:
    """Ten steps of a loader under Grain's own protocol."""

    def __init__(self):
      self._loader = _train(shards)

    def __iter__(self):
      return self

    def __next__(self):
      if self._loader.state == 20:
        raise StopIteration
      return next(self._loader)

    def get_state(self):
      return {'state': self._loader.state}

    def set_state(self, state):
      self._loader.state = state['state']

  class Dataset:
    def __iter__(self):
      return Iterator()

  grain.experimental.assert_equal_output_after_checkpoint(Dataset())


def test_other_batch_size_consumes_the_same_stream(shards):
  with _train(shards, batch_size=2) as batches:
    expected = _take(batches, 24)
  with _train(shards, batch_size=2) as batches:
    start = _take(batches, 6)
    state = batches.state
  with _train(shards, batch_size=6) as batches:
    batches.state = state
    assert start + _take(batches, 6) == expected


def test_other_number_of_processes_consumes_the_same_stream(shards):
  with _train(shards, batch_size=4) as batches:
    expected = _take(batches, 10)
  with _train(shards, batch_size=4) as batches:
    rows = _take(batches, 3)
    state = batches.state
  parts = [
    _train(shards, batch_size=4, shard_index=i, shard_count=2) for i in range(2)
  ]
  for part in parts:
    part.state = state
  for _ in range(7):
    one, two = (_rows([next(part)]) for part in parts)
    rows += [*one, *two]
  assert [part.state for part in parts] == [40, 40]
  assert rows == expected


def test_mixture_follows_its_weights(tmp_path, shards):
  (tmp_path / 'z.txt').write_text('z' * 2000)
  prepare.prepare(
    str(tmp_path / 'z.txt'), tmp_path / 'z', record_tokens=64, val_fraction=0
  )
  mixed = [f'{shards}@3', f'{tmp_path / "z"}@1']
  with loader.make_train_loader(mixed, seq_len=L, batch_size=4, seed=3) as it:
    rows = _take(it, 50)
  which = [ord('z') in row['tokens'] for row in rows]
  assert [sum(which[i : i + 4]) for i in range(0, 200, 4)] == [1] * 50


def test_phases_read_each_token_once(shards):
  """Two lengths in one epoch, the second of joined records."""
  extent = manifest.load(shards).splits['train']
  phases = [order.Stretch(3, L, (1,)), order.Stretch(6, 128, (1,))]
  tokens = collections.Counter()
  for length, first, rows in ((L, 0, 3), (128, 3, 6)):
    with loader.make_train_loader(
      [str(shards)], seq_len=length, batch_size=rows, seed=3, stretches=phases
    ) as batches:
      batches.state = first
      batch = next(batches)
      assert batch['tokens'].shape == (rows, length)
      there = batch['segment_ids'] > 0
      places = batches.order.places(range(first, first + rows))
      assert there.sum(axis=1).tolist() == [place.tokens for place in places]
      for place in places:
        start = place.record * 64 + place.offset
        tokens.update(range(start, start + place.tokens))
  assert max(tokens.values()) == 1 and max(tokens) < extent.tokens
  assert batches.state == 9
  with pytest.raises(StopIteration):
    next(batches)


def test_source_that_is_not_read_may_have_other_records(tmp_path, shards):
  (tmp_path / 'z.txt').write_text('z' * 2000)
  prepare.prepare(str(tmp_path / 'z.txt'), tmp_path / 'z', record_tokens=100)
  folders = [str(shards), str(tmp_path / 'z')]
  phases = [order.Stretch(4, L, (1, 0)), order.Stretch(4, 100, (0, 1))]
  how = {'batch_size': 4, 'seed': 0, 'stretches': phases}
  with loader.make_train_loader(folders, seq_len=L, **how) as batches:
    assert next(batches)['tokens'].shape == (4, L)
  with loader.make_train_loader(folders, seq_len=100, **how) as batches:
    batches.state = 4
    assert next(batches)['tokens'].shape == (4, 100)


def test_rows_of_another_length_are_no_batch(shards):
  phases = [order.Stretch(2, L, (1,)), order.Stretch(None, 32, (1,))]
  with _train(shards, stretches=phases) as batches:
    next(batches)
    with pytest.raises(ValueError, match='Row 2 has 32 tokens, not 16'):
      next(batches)


def _refused(sentence, exit_code, function, *args, **kwargs):
  with pytest.raises(errors.DataError, match=sentence) as caught:
    function(*args, **kwargs)
  assert caught.value.exit_code == exit_code


def test_batch_that_processes_cannot_share_is_refused(shards):
  _refused('batch_size=2 must be', 2, _train, shards, shard_count=3)


def test_sequence_that_does_not_divide_a_record_is_refused(shards):
  _refused(
    'seq_len=10 does not divide the 64',
    2,
    loader.make_train_loader,
    [str(shards)],
    seq_len=10,
    batch_size=1,
    seed=0,
  )


def test_missing_held_out_text_is_refused_at_once(tmp_path, corpus):
  prepare.prepare(str(corpus), tmp_path / 'all', val_fraction=0)
  _refused(
    'has no val split',
    2,
    loader.eval_batches,
    tmp_path / 'all',
    seq_len=L,
    batch_size=1,
  )


def test_mixed_tokenizers_are_refused(tmp_path, corpus, shards):
  other = tmp_path / 'bpe'
  prepare.prepare(str(corpus), other, train_tokenizer=270)
  _refused(
    'mixes tokenizers',
    3,
    loader.make_train_loader,
    [str(shards), str(other)],
    seq_len=L,
    batch_size=1,
    seed=0,
  )


def test_swapped_shard_is_refused_before_the_first_batch(shards):
  one, other = sorted(shards.glob('train-*.array_record'))[:2]
  shutil.copy(one, other)
  _refused(other.name, 3, _train, shards)


def test_negative_state_is_refused(shards):
  with _train(shards) as batches, pytest.raises(ValueError, match='negative'):
    batches.state = -1


def test_program_ends_with_the_loader_open(shards):
  status = subprocess.run(
    [
      sys.executable,
      '-c',
      'from pipelines import loader\n'
      f'batches = loader.make_train_loader([{str(shards)!r}], seq_len={L}, '
      'batch_size=2, seed=0)\n'
      'next(batches)\n',
    ],
    env={**os.environ, 'PYTHONPATH': os.pathsep.join([str(ROOT), *sys.path])},
    timeout=60,
    capture_output=True,
    text=True,
  )
  assert status.returncode == 0, status.stderr


def test_record_damaged_after_opening_is_named(shards):
  batches = _train(shards, batch_size=1)
  for path in shards.glob('train-*.array_record'):
    path.write_bytes(bytes(path.stat().st_size))
  _refused(r'train-.*, record \d+, cannot be read', 3, next, batches)
