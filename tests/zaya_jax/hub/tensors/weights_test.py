# SPDX-License-Identifier: Apache-2.0
"""Files that are damaged, lie, or lead elsewhere; each one sentence."""

import json
import os
import pathlib

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from zaya_jax.hub.tensors import errors, weights

VALUES = {
  'a': np.arange(6, dtype=np.float32).reshape(2, 3),
  'b': np.arange(4).astype(ml_dtypes.bfloat16),
  'c': np.arange(5).astype(np.float16),
  'empty': np.zeros((0, 3), np.float32),
}


def sharded(folder: pathlib.Path, **changes) -> str:
  """Two shards and an index; `changes` replace entries of its map."""
  safetensors.numpy.save_file({'a': VALUES['a']}, folder / '1.safetensors')
  safetensors.numpy.save_file({'b': VALUES['b']}, folder / '2.safetensors')
  index = {'a': '1.safetensors', 'b': '2.safetensors', **changes}
  (folder / weights.INDEX).write_text(json.dumps({'weight_map': index}))
  return str(folder)


def raw(folder: pathlib.Path, header, data: bytes = b'', length=None) -> str:
  """A file with this header, as given or as JSON, and these bytes."""
  text = header if isinstance(header, bytes) else json.dumps(header).encode()
  count = len(text) if length is None else length
  content = count.to_bytes(8, 'little') + text + data
  (folder / weights.SINGLE).write_bytes(content)
  return str(folder)


def entry(first: int, last: int, shape=(2,), kind='F32', **more):
  return {
    'dtype': kind, 'shape': list(shape), 'data_offsets': [first, last], **more
  }  # fmt: skip


def test_every_type_and_any_rows_are_read(tmp_path):
  safetensors.numpy.save_file(
    VALUES, tmp_path / weights.SINGLE, metadata={'format': 'pt'}
  )
  found = weights.find(str(tmp_path))
  for name, value in VALUES.items():
    assert found[name].dtype == value.dtype
    np.testing.assert_array_equal(found[name].read(), value)
  for rows in (slice(1, 2), slice(0, 9), slice(1, None)):
    np.testing.assert_array_equal(found['a'].read(rows), VALUES['a'][rows])


def test_shards_are_read(tmp_path):
  found = weights.find(sharded(tmp_path))
  np.testing.assert_array_equal(found['b'].read(), VALUES['b'])


def test_file_that_shrinks_later_is_noticed(tmp_path):
  found = weights.find(sharded(tmp_path))
  os.truncate(tmp_path / '1.safetensors', found['a'].start + 4)
  with pytest.raises(errors.FolderError, match='1.safetensors cannot be read'):
    found['a'].read()


@pytest.mark.parametrize(
  ('header', 'data', 'length', 'message'),
  [
    ({}, b'', 2**62, 'its header claims 4,611,686,018,427,387,904 bytes'),
    ({}, b'', 3, 'its header claims 3 bytes'),
    ({}, b'', 0, 'its header claims 0 bytes'),
    (b'[1]', b'', None, 'its header is not a JSON object'),
    (b'{"a"', b'', None, 'cannot be read'),
    (b'\xff\xff', b'', None, 'cannot be read'),
    (b'[' * 10**5, b'', None, 'cannot be read'),
    ({'a': 1}, b'', None, 'the entry of tensor a is not dtype, shape, offsets'),
    ({'a': entry(0, 8) | {'shape': 2}}, bytes(8), None, 'entry of tensor a'),
    ({'a': entry(0, 8, kind='F64')}, bytes(8), None, 'a is of type F64'),
    ({'a': entry(0, 8, kind='F4')}, bytes(8), None, 'only F32, BF16, F16'),
    ({'a': entry(0, 8, (-1, -2))}, bytes(8), None, r'has shape \(-1, -2\)'),
    ({'a': entry(0, 8, (2.0,))}, bytes(8), None, 'which is none'),
    ({'a': entry(0, 9)}, bytes(9), None, 'is said to lie at 0..9'),
    ({'a': entry(0, 8)}, bytes(4), None, 'its tensors end at byte'),
    ({'a': entry(0, 8)}, bytes(9), None, 'its tensors end at byte'),
    ({'a': entry(4, 12)}, bytes(12), None, 'where 0..8 is its place'),
    ({'a': entry(-8, 0)}, bytes(8), None, 'is said to lie at -8..0'),
    (
      {'a': entry(0, 8), 'b': entry(4, 12)},
      bytes(12),
      None,
      'tensor b .* where 8..16 is its place',
    ),
    (
      b'{"a": %s, "a": %s}' % ((json.dumps(entry(0, 8)).encode(),) * 2),
      bytes(8),
      None,
      'a name occurs twice',
    ),
  ],
)
def test_lying_header_is_refused(tmp_path, header, data, length, message):
  folder = raw(tmp_path, header, data, length)
  with pytest.raises(errors.FolderError, match=message) as raised:
    weights.find(folder)
  text = str(raised.value)
  assert raised.value.exit_code == 3
  assert weights.SINGLE in text and '\n' not in text


def test_file_without_a_header_is_refused(tmp_path):
  for content in (b'', b'\x00' * 7):
    (tmp_path / weights.SINGLE).write_bytes(content)
    with pytest.raises(errors.FolderError, match='its header claims'):
      weights.find(str(tmp_path))


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'b': '../2.safetensors'}, 'leads out of the folder'),
    ({'b': '/etc/passwd'}, 'leads out of the folder'),
    ({'b': 'sub/2.safetensors'}, 'leads out of the folder'),
    ({'b': '..'}, 'leads out of the folder'),
    ({'b': ''}, 'leads out of the folder'),
    ({'b': '3.safetensors'}, '3.safetensors is missing'),
    ({'b': 3}, 'no "weight_map"'),
    ({'b': '1.safetensors'}, 'says that 1.safetensors holds tensor b'),
    ({'z': '1.safetensors'}, 'says that 1.safetensors holds tensor z'),
  ],
)
def test_index_that_is_wrong_is_refused(tmp_path, changes, message):
  with pytest.raises(errors.FolderError, match=message):
    weights.find(sharded(tmp_path, **changes))


@pytest.mark.parametrize('content', ['{', '[]', '{}', '{"weight_map": []}'])
def test_index_that_is_none_is_refused(tmp_path, content):
  (tmp_path / weights.INDEX).write_text(content)
  with pytest.raises(errors.FolderError, match='index.json'):
    weights.find(str(tmp_path))


def test_tensor_in_two_shards_is_refused(tmp_path):
  folder = sharded(tmp_path)
  safetensors.numpy.save_file(VALUES, tmp_path / '2.safetensors')
  with pytest.raises(errors.FolderError, match='has tensor a twice'):
    weights.find(folder)


def test_link_out_of_the_folder_is_refused(tmp_path):
  folder, other = tmp_path / 'hf', tmp_path / 'other.safetensors'
  folder.mkdir()
  sharded(folder)
  (folder / '2.safetensors').rename(other)
  (folder / '2.safetensors').symlink_to(other)
  with pytest.raises(errors.FolderError, match='leads out of the folder'):
    weights.find(str(folder))


def test_links_of_the_hub_cache_are_followed(tmp_path):
  folder, blobs = tmp_path / 'snapshots' / 'abc', tmp_path / 'blobs'
  folder.mkdir(parents=True)
  blobs.mkdir()
  sharded(folder)
  (folder / '2.safetensors').rename(blobs / 'sha')
  (folder / '2.safetensors').symlink_to('../../blobs/sha')
  assert set(weights.find(str(folder))) == {'a', 'b'}


@pytest.mark.parametrize(
  'name', ['pytorch_model.bin', 'pytorch_model-00001-of-00002.bin', 'model.pt']
)
def test_pickles_are_refused_and_never_opened(tmp_path, name):
  os.mkfifo(tmp_path / name)  # Who opens it waits for ever.
  with pytest.raises(
    errors.FolderError, match='only pickled weights .*convert'
  ):
    weights.find(str(tmp_path))


def test_folder_without_weights_is_named(tmp_path):
  with pytest.raises(errors.FolderError, match='has neither model.safetensors'):
    weights.find(str(tmp_path))
