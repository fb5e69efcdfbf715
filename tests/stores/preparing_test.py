# SPDX-License-Identifier: Apache-2.0
"""Text from, and shards to, a real object store."""

import json
import uuid

import fsspec
import pytest

from pipelines import errors, prepare
from pipelines.prepare.input import read
from tests.stores.faults import ANSWER, CUT, DROP

SMALL = {'record_tokens': 64, 'val_fraction': 0.2}


def _fill(root):
  """The same files here or there."""
  fs, place = fsspec.core.url_to_fs(str(root))
  fs.makedirs(f'{place}/sub', exist_ok=True)
  lines = ''.join(json.dumps({'text': f'text {i}'}) + '\n' for i in range(50))
  fs.pipe_file(f'{place}/a.jsonl', lines.encode())
  fs.pipe_file(f'{place}/sub/b.txt', b'some text\n' * 20)
  return str(root)


@pytest.fixture
def url(faults):
  fs = fsspec.filesystem('s3')
  bucket = f's3://{uuid.uuid4()}'
  fs.mkdir(bucket)
  return bucket


def test_text_and_shards_are_those_of_a_folder(url, tmp_path, faults):
  here = prepare.prepare(_fill(tmp_path / 'corpus'), tmp_path / 'a', **SMALL)
  _fill(f'{url}/corpus')
  actions = [ANSWER, ANSWER, DROP, ANSWER, ANSWER, CUT]
  faults.rule = lambda number, path: actions[number % 6]
  there = prepare.prepare(f'{url}/corpus', f'{url}/out', **SMALL)
  assert (here.splits, here.sources) == (there.splits, there.sources)
  fs = fsspec.filesystem('s3')
  for shard in here.splits['train'].shards:
    written = (tmp_path / 'a' / shard.name).read_bytes()
    assert fs.cat_file(f'{url}/out/{shard.name}') == written


def test_nothing_there_is_named(url):
  with pytest.raises(errors.DataError, match='does not exist'):
    read.find(f'{url}/nothing')


def test_store_that_is_down_is_named(url, tmp_path, faults):
  _fill(f'{url}/corpus')
  faults.rule = lambda number, path: DROP
  with pytest.raises(errors.DataError, match='did not answer 3 times'):
    prepare.prepare(f'{url}/corpus', tmp_path / 'b', **SMALL)
