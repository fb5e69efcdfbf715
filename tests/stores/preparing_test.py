# SPDX-License-Identifier: Apache-2.0
"""Text from, and shards to, a real object store."""

import json

import fsspec
import pytest

from pipelines import errors, prepare
from pipelines.prepare.input import read
from tests.stores.faults import DROP

SMALL = {'record_tokens': 64, 'val_fraction': 0.2}


def _fill(root):
  """The same files here or there."""
  fs, place = fsspec.core.url_to_fs(str(root))
  fs.makedirs(f'{place}/sub', exist_ok=True)
  lines = ''.join(json.dumps({'text': f'text {i}'}) + '\n' for i in range(50))
  fs.pipe_file(f'{place}/a.jsonl', lines.encode())
  fs.pipe_file(f'{place}/sub/b.txt', b'some text\n' * 20)
  return str(root)


both = pytest.mark.parametrize('scheme', ['s3', 'gs'], indirect=True)


@both
def test_text_and_shards_are_those_of_a_folder(bucket, tmp_path, faults):
  here = prepare.prepare(_fill(tmp_path / 'corpus'), tmp_path / 'a', **SMALL)
  _fill(f'{bucket}/corpus')
  faults.every_third()
  there = prepare.prepare(f'{bucket}/corpus', f'{bucket}/out', **SMALL)
  assert (here.splits, here.sources) == (there.splits, there.sources)
  fs, _ = fsspec.core.url_to_fs(bucket)
  for shard in here.splits['train'].shards:
    written = (tmp_path / 'a' / shard.name).read_bytes()
    assert fs.cat_file(f'{bucket}/out/{shard.name}') == written


@both
def test_nothing_there_is_named(bucket):
  with pytest.raises(errors.DataError, match='does not exist'):
    read.find(f'{bucket}/nothing')


@both
def test_store_that_is_down_is_named(bucket, tmp_path, faults):
  _fill(f'{bucket}/corpus')
  faults.rule = lambda number, path: DROP
  with pytest.raises(errors.DataError, match='did not answer 3 times'):
    prepare.prepare(f'{bucket}/corpus', tmp_path / 'b', **SMALL)
