# SPDX-License-Identifier: Apache-2.0

import dataclasses

import numpy as np
import pytest
from array_record.python import array_record_module

from pipelines import errors, pack, sources
from pipelines.shards import manifest


def _write(path, records):
  writer = array_record_module.ArrayRecordWriter(
    str(path), 'group_size:1,uncompressed'
  )
  for record in records:
    writer.write(np.asarray(record, '<u2').tobytes())
  writer.close()


def _source(shards):
  """Opens the shards without comparing their hashes."""
  return sources.WindowSource(shards, 'train', 16, manifest.load(shards))


def _second_shard(shards):
  return sorted(shards.glob('train-*.array_record'))[1]


def _refused(source, index, *sentences):
  with pytest.raises(errors.DataError) as caught:
    source[index]
  assert caught.value.exit_code == 3
  for sentence in sentences:
    assert sentence in str(caught.value)


def test_windows_do_not_cross_records(shards):
  source = _source(shards)
  per_record = 64 // 16
  assert source[per_record - 1][-1] == -1
  assert source[per_record - 2][-1] == source[per_record - 1][0]


def test_padding_fills_no_window(shards):
  source = _source(shards)
  assert all((source[i][:2] >= 0).all() for i in range(len(source)))


def test_window_of_several_records_joins_them(shards):
  data = manifest.load(shards)
  short = sources.WindowSource(shards, 'train', 64, data)
  long = sources.WindowSource(shards, 'train', 128, data)
  records = [short[i][:64] for i in range(len(short))]
  end = [pack.NO_TOKEN] * 65
  for i in range(0, len(records), 2):
    parts = np.concatenate([*records[i : i + 2], end])
    assert long[i // 2].tolist() == [*parts[:128], pack.NO_TOKEN]
  assert len(long) == -(-len(short) // 2)


def test_gap_before_a_conversation_holds_no_token(shards):
  data = manifest.load(shards)
  split = dataclasses.replace(data.splits['train'], counted_tokens=0)
  data = dataclasses.replace(data, splits={'train': split})
  flags = np.full(64, pack.COUNTS, np.uint8)
  flags[3:16] = pack.EMPTY
  _write(_second_shard(shards), [[65] * 64 + flags.view('<u2').tolist()])
  source = sources.WindowSource(shards, 'train', 16, data)
  assert source[8].tolist() == [65] * 3 + [pack.NO_TOKEN] * 13 + [65]


@pytest.mark.parametrize(
  'record, sentence',
  [
    ([65] * 63 + [259], 'has token 259, but the vocabulary has 259'),
    ([65] * 60, 'has 120 bytes, not 128'),
    ([], 'has 0 bytes, not 128'),
  ],
)
def test_wrong_record_is_named(shards, record, sentence):
  path = _second_shard(shards)
  source = _source(shards)
  _write(path, [[65] * 64, record])
  assert source[8].max() == 65
  _refused(source, 12, f'{path.name}, record 1', sentence)


def test_flipped_bit_is_named_when_it_is_read(shards):
  path = _second_shard(shards)
  source = _source(shards)
  _write(path, [[65] * 64, np.arange(64)])
  content = bytearray(path.read_bytes())
  content[content.index(np.arange(20, 40, dtype='<u2').tobytes())] ^= 1
  path.write_bytes(content)
  assert source[8].max() == 65
  _refused(source, 12, f'{path.name}, record 1', 'hash mismatch')


def test_shard_that_vanishes_while_open_is_named(shards):
  path = _second_shard(shards)
  source = _source(shards)
  path.unlink()
  _refused(source, 8, f'{path.name}, record 0', 'cannot be read')


def test_shard_with_fewer_records_is_named(shards):
  path = _second_shard(shards)
  source = _source(shards)
  _write(path, [[65] * 64])
  _refused(source, 12, f'{path.name}, record 1', 'cannot be read')
