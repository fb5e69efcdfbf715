# SPDX-License-Identifier: Apache-2.0

import jax
import numpy as np
import pytest

from zaya_jax.checkpoint import errors
from zaya_jax.checkpoint.reading import lazy
from zaya_jax.checkpoint.writing import handlers, stream


@pytest.fixture(params=[(1, 1, 4), (2, 3, 4), (5, 3, 4)], ids=str)
def checkpoint(request, tmp_path):
  """A path, and the array that is stored there in chunks of some shape."""
  whole = np.arange(60, dtype=np.float32).reshape(5, 3, 4)
  array = stream.Array(
    whole.shape, whole.dtype, request.param, lambda: [(slice(None), whole)]
  )
  directory = str(tmp_path / 'checkpoints' / '0')
  stream.write(directory, {'params': {'layers': {'w': array}}}, {})
  return directory, whole


def test_every_part_is_read_whatever_the_chunks(checkpoint):
  directory, whole = checkpoint
  leaf = lazy.leaves(directory)['params/layers/w']
  assert (leaf.shape, leaf.dtype) == (whole.shape, whole.dtype)
  for index in [(), (0,), (4,), (3, 2), (1, 0), (4, 2), (2,)]:
    np.testing.assert_array_equal(leaf[index], whole[index])


def test_parts_in_order_read_each_chunk_once(checkpoint, monkeypatch):
  directory, whole = checkpoint
  leaf = lazy.leaves(directory)['params/layers/w']
  reads = []

  class Counted:
    def __getitem__(self, rows):
      reads.append(rows)
      return self.store[rows]

    def __getattr__(self, name):
      return getattr(self.store, name)

  Counted.store = leaf._store
  monkeypatch.setattr(leaf, '_store', Counted())
  for n in range(5):
    for e in range(3):
      np.testing.assert_array_equal(leaf[n, e], whole[n, e])
  rows = [n for part in reads for n in range(*part.indices(5))]
  assert rows == [0, 1, 2, 3, 4]


def test_state_of_training_is_read(saved, make_state):
  found = lazy.leaves(str(saved))
  state = make_state(1)
  np.testing.assert_array_equal(
    found['params/blocks/w'][()], state.params['blocks']['w']
  )
  assert found['params/scale'].dtype.name == 'bfloat16'


def test_large_arrays_of_training_can_be_read_by_layer(
  make_manager, monkeypatch, tmp_path, abstract
):
  monkeypatch.setattr(handlers, '_LARGE', 100)
  mesh = jax.make_mesh((4,), ('replica',), devices=jax.devices()[:4])
  draw = lambda *shape: jax.device_put(
    np.random.default_rng(0).random(shape, np.float32),
    jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec()),
  )
  state = {'params': {'w': draw(6, 4, 8), 'embed': draw(40, 8)}}
  with make_manager() as checkpoints:
    checkpoints.save(1, state, data_index=0, meta={})
    checkpoints.wait()
    restored, _, _ = checkpoints.restore(1, abstract(state))
  jax.tree.map(np.testing.assert_array_equal, restored, state)
  found = lazy.leaves(str(tmp_path / 'run' / 'checkpoints' / '1'))
  assert found['params/w']._store.chunk_layout.read_chunk.shape[0] == 1
  assert found['params/embed']._store.chunk_layout.read_chunk.shape[0] > 1
  for n in range(6):
    np.testing.assert_array_equal(
      found['params/w'][n,], state['params']['w'][n]
    )


def test_damage_is_one_sentence(saved):
  leaf = lazy.leaves(str(saved))['params/blocks/w']
  for file in (saved / 'state').rglob('d/*'):
    file.unlink()
  with pytest.raises(errors.CheckpointError, match='is damaged'):
    leaf[()]
  (saved / 'state' / '_METADATA').write_text('{')
  with pytest.raises(errors.CheckpointError, match='is damaged'):
    lazy.leaves(str(saved))
