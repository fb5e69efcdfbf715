# SPDX-License-Identifier: Apache-2.0
"""Reading back: to the bit, onto other devices, and never the wrong thing."""

import dataclasses
import os
import shutil

import jax
import jax.numpy as jnp
import pytest

from tests.support import hashes
from zaya_jax.checkpoint import errors, seal
from zaya_jax.checkpoint.reading import finder, reader


@pytest.mark.parametrize('before, after', [(1, 1), (8, 8), (8, 1), (1, 4)])
def test_state_is_equal_to_the_bit_on_any_number_of_devices(
  before, after, make_manager, make_state, abstract
):
  state, wanted = make_state(1, before), abstract(make_state(0, after))
  with make_manager() as checkpoints:
    checkpoints.save(4, state, data_index=64, meta={'tokens': 5})
    checkpoints.wait()
    restored, data_index, meta = checkpoints.restore(4, wanted)
  assert hashes.state_hash(restored) == hashes.state_hash(state)
  assert (data_index, meta['tokens']) == (64, 5)
  assert jax.tree.structure(restored) == jax.tree.structure(state)
  for leaf, place in zip(
    jax.tree.leaves(restored), jax.tree.leaves(wanted), strict=True
  ):
    assert leaf.sharding == place.sharding and leaf.dtype == place.dtype


def replaced(tree, path, leaf):
  found = {**tree.params, path: leaf}
  return dataclasses.replace(
    tree, params={k: v for k, v in found.items() if v is not None}
  )


@pytest.mark.parametrize(
  'path, leaf, sentence',
  [
    ('scale', ((3,), 'float32'), 'scale is bfloat16[3] .* float32[3] here'),
    ('scale', ((4,), 'bfloat16'), 'scale is bfloat16[3] .* bfloat16[4] here'),
    ('scale', None, 'scale is bfloat16[3] .* absent here'),
    ('extra', ((1,), 'float32'), 'extra is absent .* float32[1] here'),
  ],
)
def test_other_arrays_than_saved_are_refused(
  path, leaf, sentence, saved, make_state, abstract
):
  tree = abstract(make_state())
  if leaf is not None:
    leaf = jax.ShapeDtypeStruct(
      leaf[0], jnp.dtype(leaf[1]), sharding=tree.step.sharding
    )
  pattern = f'params/{sentence}'.replace('[', r'\[')
  with pytest.raises(errors.CheckpointError, match=pattern) as caught:
    reader.restore(str(saved), replaced(tree, path, leaf))
  assert caught.value.exit_code == 2


def test_parameters_are_read_without_the_optimizer(saved, make_state, abstract):
  state = make_state(1)
  wanted = {'params': state.params, 'buffers': state.buffers}
  for source in (saved, saved.parent.parent):
    found = reader.restore_params(str(source), abstract(wanted))
    assert hashes.state_hash(found) == hashes.state_hash(wanted)


def test_parameters_that_are_not_those_saved_are_refused(
  saved, make_state, abstract
):
  facts = seal.read(str(saved))
  del facts['files']
  facts['fingerprint']['params/blocks/w'] = '0' * 16
  seal.write(str(saved), facts)
  with pytest.raises(seal.BrokenError, match='the values of params/blocks/w'):
    reader.restore_params(str(saved), abstract({'params': make_state().params}))


@pytest.mark.parametrize('dtype', ['bfloat16', 'float16'])
def test_half_precision_is_widened_where_float32_is_asked_for(
  make_manager, abstract, dtype, tmp_path
):
  half = jnp.array([0.1, -7.0, 3e-5], dtype)
  with make_manager() as checkpoints:
    state = {'params': {'w': half}}
    checkpoints.save(1, state, data_index=1, meta={})
  wanted = abstract({'params': {'w': half.astype(jnp.float32)}})
  found = reader.restore_params(str(tmp_path / 'run'), wanted)['params']['w']
  assert found.dtype == jnp.float32
  assert found.tolist() == half.tolist()


def test_parameters_of_another_shape_are_refused(saved, make_state, abstract):
  wanted = abstract({'params': make_state().params})
  wanted['params']['scale'] = jax.ShapeDtypeStruct((9,), jnp.bfloat16)
  with pytest.raises(errors.CheckpointError, match=r'bfloat16\[9\] here'):
    reader.restore_params(str(saved), wanted)


@pytest.mark.parametrize(
  'pattern', ['state/_METADATA', 'state/manifest.ocdbt', 'meta/metadata']
)
@pytest.mark.parametrize('harm', ['cut', 'gone', 'garbled'])
def test_damaged_file_is_reported_with_its_checkpoint(
  pattern, harm, saved, make_state, abstract
):
  path = saved / pattern
  content = path.read_bytes()
  if harm == 'gone':
    path.unlink()
  else:
    half = content[: len(content) // 2]
    path.write_bytes(half if harm == 'cut' else content[::-1])
  with pytest.raises(errors.CheckpointError, match=f'{saved} is dam') as caught:
    reader.restore(str(saved), abstract(make_state()))
  assert caught.value.exit_code == 3
  assert '\n' not in str(caught.value)


def test_missing_array_data_are_reported(saved, make_state, abstract):
  for folder in saved.glob('state/**/d'):
    shutil.rmtree(folder)
  with pytest.raises(errors.CheckpointError, match='is damaged'):
    reader.restore(str(saved), abstract(make_state()))


@pytest.mark.parametrize('mesh_size', [1, 2, 8])
def test_fingerprints_are_compared_on_whatever_mesh(
  saved, make_state, abstract, mesh_size
):
  wanted = abstract(make_state(0, mesh_size))
  reader.restore(str(saved.parent / '4'), wanted)
  facts = seal.read(str(saved.parent / '4'))
  del facts['files']
  facts['fingerprint']['step'] = '0' * 16
  seal.write(str(saved.parent / '4'), facts)
  with pytest.raises(seal.BrokenError, match='the values of step'):
    reader.restore(str(saved.parent / '4'), wanted)


@pytest.mark.parametrize(
  'name', ['meta/metadata', 'state/_METADATA', '_CHECKPOINT_METADATA']
)
@pytest.mark.parametrize('bomb', ['deep', 'large', 'number'])
def test_json_bomb_in_a_sealed_checkpoint_is_refused_by_name(
  saved, make_state, abstract, name, bomb
):
  path, facts = saved.parent / '4' / name, seal.read(str(saved.parent / '4'))
  del facts['files']
  if bomb == 'large':
    os.truncate(path, 2**31)
    monster = {name: [2**31, '0' * 64]}
  else:
    path.write_text('[' * 10**6 if bomb == 'deep' else '1' * 10**5)
    monster = {}
  seal.write(str(saved.parent / '4'), facts, known=monster)
  with pytest.raises(errors.CheckpointError, match=name) as caught:
    reader.restore(str(saved.parent / '4'), abstract(make_state()))
  assert caught.value.exit_code == 3


def edit_index(four, five):
  path = four / 'meta' / 'metadata'
  text = path.read_text().replace('"data_index": 64', '"data_index": 99')
  assert text != path.read_text()
  path.write_text(text)


def edit_index_and_seal(four, five):
  edit_index(four, five)
  facts = seal.read(str(four))
  del facts['files']
  facts['metrics'] = {}
  seal.write(str(four), facts)
  seal.remember(str(four), seal_before[str(four)])


def swap_arrays(four, five):
  shutil.rmtree(four / 'state')
  shutil.copytree(five / 'state', four / 'state')


def swap_all(four, five):
  shutil.rmtree(four)
  shutil.copytree(five, four)


def garble_arrays(four, five):
  for path in (four / 'state').rglob('d/*'):
    content = path.read_bytes()
    path.write_bytes(content[:9] + bytes(len(content) - 9))


def unseal(four, five):
  swap_arrays(four, five)
  (four / seal.NAME).unlink()


seal_before = {}


@pytest.mark.parametrize(
  'swap',
  [
    edit_index,
    edit_index_and_seal,
    swap_arrays,
    garble_arrays,
    swap_all,
    unseal,
  ],  # fmt: skip
)
def test_what_changes_after_it_was_verified_is_refused(
  saved, make_manager, make_state, abstract, swap
):
  with make_manager() as checkpoints:
    checkpoints.save(5, make_state(5), data_index=80, meta={})
    checkpoints.wait()
  five = saved.with_name('5').rename(saved.parents[1] / 'five')
  four = finder.resolve(str(saved))
  seal_before[four] = seal.verified(four)
  reader.restore(four, abstract(make_state()))
  swap(saved, five)
  with pytest.raises(errors.CheckpointError) as caught:
    reader.restore(four, abstract(make_state()))
  assert caught.value.exit_code == 3


def test_checkpoint_without_a_seal_is_not_restored(saved, make_state, abstract):
  (saved / seal.NAME).unlink()
  with pytest.raises(seal.BrokenError, match='has no seal'):
    reader.restore(str(saved), abstract(make_state()))


def test_seal_that_knows_no_fingerprint_of_an_array_is_not_enough(
  saved, make_state, abstract
):
  facts = seal.read(str(saved))
  del facts['files'], facts['fingerprint']['params/blocks/w']
  seal.write(str(saved), facts)
  with pytest.raises(seal.BrokenError, match='values of params/blocks/w'):
    reader.restore(str(saved), abstract(make_state()))
