# SPDX-License-Identifier: Apache-2.0
"""Folders are written here in the other direction of the name table."""

import json
import pathlib
import types

import jax
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from tests.support import folders
from zaya_jax import config as config_lib
from zaya_jax.hub import config as hub_config
from zaya_jax.hub import folder as hub_folder
from zaya_jax.hub import names as hub_names
from zaya_jax.hub.tensors import errors
from zaya_jax.model import zaya

# As transformers writes it, with a value of its own for every key.
CONFIG = {
  'model_type': 'zaya',
  'vocab_size': 11,
  'hidden_size': 6,
  'num_hidden_layers': 3,
  'num_attention_heads': 4,
  'num_key_value_heads': 2,
  'head_dim': 8,
  'cca_time0': 2,
  'cca_time1': 3,
  'attention_bias': True,
  'num_experts': 2,
  'num_experts_per_tok': 1,
  'moe_intermediate_size': 5,
  'router_hidden_size': 7,
  'tie_word_embeddings': False,
  'lm_head_bias': True,
  'hidden_act': 'silu',
  'rms_norm_eps': 1e-4,
  'initializer_range': 0.03,
  'sliding_window': 9,
  'layer_types': ['hybrid', 'hybrid_sliding', 'hybrid'],
  'rope_parameters': {
    'rope_type': 'default',
    'hybrid': {
      'rope_type': 'default',
      'rope_theta': 1e6,
      'partial_rotary_factor': 0.25,
    },
    'hybrid_sliding': {
      'rope_type': 'default',
      'rope_theta': 123.0,
      'partial_rotary_factor': 0.25,
    },
  },
}


@pytest.fixture
def model():
  """A configuration and random values for each of its leaves."""
  config = hub_config.translate('config.json', CONFIG)
  rng = np.random.default_rng(0)
  draw = lambda leaf: rng.normal(size=leaf.shape).astype(np.float32)
  shapes = jax.eval_shape(lambda key: zaya.init(config, key), jax.random.key(0))
  params, buffers = jax.tree.map(draw, shapes)
  params['layers']['router']['eda'][0] = 0  # It has no tensor.
  return config, params, buffers


def tensors_of(model) -> dict[str, np.ndarray]:
  """Their names and layouts."""
  _, params, buffers = model
  return {
    name: np.ascontiguousarray(value)
    for rows, tree in (
      (hub_names.PARAMS, params),
      (hub_names.BUFFERS, buffers),
    )
    for name, value in folders.export(rows, tree)
  }


def write(folder: pathlib.Path, tensors, **changes) -> str:
  (folder / 'config.json').write_text(json.dumps(CONFIG | changes))
  safetensors.numpy.save_file(tensors, folder / 'model.safetensors')
  return str(folder)


def assert_trees_equal(found, wanted):
  jax.tree.map(np.testing.assert_array_equal, found, wanted)


def test_every_key_of_the_configuration_is_read(tmp_path):
  (tmp_path / 'config.json').write_text(json.dumps(CONFIG))
  assert hub_folder.read_config(str(tmp_path)) == config_lib.ModelConfig(
    num_layers=3,
    d_model=6,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    conv_depthwise=2,
    conv_grouped=3,
    attention_bias=True,
    num_experts=2,
    d_expert=5,
    d_router=7,
    skip='zero',
    vocab_size=11,
    tie_embeddings=False,
    head_bias=True,
    rope_theta=1e6,
    rope_fraction=0.25,
    sliding_window=9,
    sliding_layers=(1,),
    sliding_rope_theta=123.0,
    norm_eps=1e-4,
    init_std=0.03,
  )


def test_omitted_keys_mean_the_released_8b_model(tmp_path):
  (tmp_path / 'config.json').write_text('{"model_type": "zaya"}')
  config = hub_folder.read_config(str(tmp_path))
  assert (config.num_layers, config.d_model) == (40, 2048)
  assert (config.num_experts, config.d_expert) == (16, 2048)
  assert (config.rope_theta, config.rope_fraction) == (5e6, 0.5)
  assert config.tie_embeddings and not config.sliding_layers


def test_null_is_as_if_the_key_were_absent():
  def meaning(given):
    try:
      return hub_config.translate('config.json', given)
    except ValueError as error:
      return str(error)

  for key in CONFIG.keys() - {'model_type'}:
    absent = {k: v for k, v in CONFIG.items() if k != key}
    assert meaning(CONFIG | {key: None}) == meaning(absent), key
  for kind in ('hybrid', 'hybrid_sliding'):
    for key in CONFIG['rope_parameters'][kind]:
      nothing, absent = (json.loads(json.dumps(CONFIG)) for _ in range(2))
      nothing['rope_parameters'][kind][key] = None
      del absent['rope_parameters'][kind][key]
      assert meaning(nothing) == meaning(absent), key


def test_window_without_sliding_layers_is_no_window(tmp_path):
  given = CONFIG | {'layer_types': ['hybrid'] * 3}
  (tmp_path / 'config.json').write_text(json.dumps(given))
  assert hub_folder.read_config(str(tmp_path)).sliding_window == 0


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'model_type': 'llama'}, "model_type is 'llama'"),
    ({'hidden_act': 'gelu'}, "hidden_act is 'gelu'"),
    ({'num_experts_per_tok': 2}, 'num_experts_per_tok is 2'),
    ({'layer_types': ['hybrid']}, 'layer_types has 1 entries'),
    ({'layer_types': ['hybrid', 'mamba', 'hybrid']}, "layer_types has 'mamba'"),
    ({'sliding_window': None}, 'sliding_window is None'),
    ({'rope_parameters': {'rope_theta': 1e4}}, 'has no rope_theta for'),
    ({'hidden_size': '6'}, "hidden_size is '6'; it must be a whole number"),
    ({'hidden_size': 6.0}, 'hidden_size is 6.0; it must be a whole number'),
    ({'num_hidden_layers': 10**12}, 'which is too large'),
    ({'tie_word_embeddings': 1}, 'tie_word_embeddings is 1; it must be true'),
    ({'layer_types': 'hybrid'}, "layer_types is 'hybrid'; it must be a list"),
    ({'layer_types': [['x'], 1, {}]}, 'layer_types has'),
    ({'rope_parameters': []}, 'rope_parameters is .*; it must be an object'),
    ({'rope_scaling': {'rope_type': 'yarn'}}, "rope_scaling is 'yarn'"),
    ({'rms_norm_eps': -1.0}, '--model.norm_eps=-1.0 must be at least 0'),
    ({'vocab_size': 0}, '--model.vocab_size=0 must be at least 2'),
    ({'num_key_value_heads': 3}, '--model.num_kv_heads=3 does not divide'),
  ],
)
def test_unsupported_setting_is_named(tmp_path, changes, message):
  (tmp_path / 'config.json').write_text(json.dumps(CONFIG | changes))
  with pytest.raises(errors.FolderError, match=message) as raised:
    hub_folder.read_config(str(tmp_path))
  assert str(tmp_path) in str(raised.value)
  assert raised.value.exit_code == 3


@pytest.mark.parametrize(
  ('key', 'value', 'message'),
  [
    ('rope_type', 'yarn', "rope_type of 'hybrid' layers is 'yarn'"),
    ('partial_rotary_factor', 0.5, 'partial_rotary_factor differs'),
  ],
)
def test_unsupported_rotation_is_named(tmp_path, key, value, message):
  rope = json.loads(json.dumps(CONFIG['rope_parameters']))
  rope['hybrid'][key] = value
  given = CONFIG | {'rope_parameters': rope}
  (tmp_path / 'config.json').write_text(json.dumps(given))
  with pytest.raises(errors.FolderError, match=message):
    hub_folder.read_config(str(tmp_path))


def test_missing_or_broken_configuration_is_named(tmp_path):
  with pytest.raises(errors.FolderError, match='config.json cannot be read'):
    hub_folder.read_config(str(tmp_path))
  (tmp_path / 'config.json').write_text('{')
  with pytest.raises(errors.FolderError, match='config.json cannot be read'):
    hub_folder.read_config(str(tmp_path))


@pytest.mark.parametrize(
  ('model', 'generation', 'stop'),
  [
    ({}, None, (106,)),
    ({'eos_token_id': None}, None, ()),
    ({'eos_token_id': 1}, {}, (1,)),
    ({'eos_token_id': 1}, {'eos_token_id': [1, 106]}, (1, 106)),
  ],
)
def test_stop_tokens_are_those_of_generation(tmp_path, model, generation, stop):
  (tmp_path / 'config.json').write_text(json.dumps(model))
  if generation is not None:
    path = tmp_path / 'generation_config.json'
    path.write_text(json.dumps(generation))
  assert hub_folder.read_stop_ids(str(tmp_path)) == stop


def test_every_leaf_comes_back(tmp_path, model):
  folder = write(tmp_path, tensors_of(model))
  found = hub_folder.read_params(folder, hub_folder.read_config(folder))
  assert_trees_equal(found, model[1:])


def test_shards_and_bfloat16_are_read(tmp_path, model):
  tensors = {
    name: value.astype(ml_dtypes.bfloat16)
    for name, value in tensors_of(model).items()
  }
  names = sorted(tensors)
  shards = {'a.safetensors': names[::2], 'b.safetensors': names[1::2]}
  for file, part in shards.items():
    chosen = {name: tensors[name] for name in part}
    safetensors.numpy.save_file(chosen, tmp_path / file)
  index = {name: file for file, part in shards.items() for name in part}
  (tmp_path / 'model.safetensors.index.json').write_text(
    json.dumps({'weight_map': index})
  )
  (tmp_path / 'config.json').write_text(json.dumps(CONFIG))
  assert hub_folder.is_folder(str(tmp_path))
  found = hub_folder.read_params(str(tmp_path), model[0])
  rounded = jax.tree.map(
    lambda leaf: leaf.astype(ml_dtypes.bfloat16).astype(np.float32), model[1:]
  )
  assert_trees_equal(found, rounded)
  assert {leaf.dtype for leaf in jax.tree.leaves(found)} == {np.dtype('f4')}


def test_table_names_every_leaf_of_the_model(model):
  for rows, tree in zip(
    (hub_names.PARAMS, hub_names.BUFFERS), model[1:], strict=True
  ):
    paths = {row.path for row in rows}
    assert hub_names.flatten(tree).keys() == paths


def test_layouts_are_inverse_and_tap_zero_stays_the_older():
  theirs = np.arange(4 * 3 * 2 * 3).reshape(12, 3, 2)  # [G * out, in, taps]
  layout = next(
    row.axes for row in hub_names.PARAMS if row.path.endswith('conv_grouped')
  )
  ours = layout.read(theirs)
  assert ours.shape == (2, 4, 3, 3)
  assert ours[0, 1, 2, 0] == theirs[1 * 3 + 0, 2, 0]
  np.testing.assert_array_equal(layout.write(ours), theirs)


def test_missing_tensor_is_named(tmp_path, model):
  tensors = tensors_of(model)
  del tensors['model.layers.1.mlp.gate.router_states_scale']
  folder = write(tmp_path, tensors)
  with pytest.raises(errors.FolderError, match='no tensor model.layers.1.mlp'):
    hub_folder.read_params(folder, model[0])


def test_unexpected_tensor_is_named(tmp_path, model):
  tensors = tensors_of(model) | {'model.layers.9.odd': np.zeros(1, np.float32)}
  folder = write(tmp_path, tensors)
  with pytest.raises(errors.FolderError, match='such as model.layers.9.odd'):
    hub_folder.read_params(folder, model[0])


def test_tensor_of_another_shape_is_named(tmp_path, model):
  tensors = tensors_of(model)
  tensors['model.norm.weight'] = np.zeros(5, np.float32)
  folder = write(tmp_path, tensors)
  message = r'model.norm.weight has shape \(5,\), .* asks for \(6,\)'
  with pytest.raises(errors.FolderError, match=message):
    hub_folder.read_params(folder, model[0])


def test_stored_copy_of_a_tied_head_must_be_one(tmp_path, model):
  tensors = tensors_of(model)
  tensors['lm_head.weight'] = tensors['model.embed_tokens.weight'].copy()
  folder = write(tmp_path, tensors, tie_word_embeddings=True)
  config = hub_folder.read_config(folder)
  assert 'head' not in hub_folder.read_params(folder, config)[0]
  tensors['lm_head.weight'][0, 0] += 1
  write(tmp_path, tensors, tie_word_embeddings=True)
  with pytest.raises(errors.FolderError, match='ties lm_head.weight to'):
    hub_folder.read_params(folder, config)


def test_every_block_of_a_copy_is_compared(tmp_path, model, monkeypatch):
  monkeypatch.setattr(hub_folder, '_BLOCK', 1)  # A row at a time.
  tensors = tensors_of(model)
  tensors['lm_head.weight'] = tensors['model.embed_tokens.weight'].copy()
  tensors['lm_head.weight'][0, 0] += 1
  folder = write(tmp_path, tensors, tie_word_embeddings=True)
  with pytest.raises(errors.FolderError, match='ties lm_head.weight to'):
    hub_folder.read_params(folder, hub_folder.read_config(folder))


def test_tokenizer_may_have_as_many_ids_as_the_model(tmp_path, monkeypatch):
  (tmp_path / 'tokenizer.json').write_text('{}')
  loaded = types.SimpleNamespace(vocab_size=300)
  monkeypatch.setattr(hub_folder.tokenizer_lib, 'load', lambda path: loaded)
  read = lambda size: hub_folder.read_tokenizer(
    str(tmp_path), config_lib.ModelConfig(vocab_size=size)
  )
  assert read(300) is loaded
  with pytest.raises(errors.FolderError, match='has 300 ids, but the model'):
    read(299)


def test_damaged_or_missing_weights_are_named(tmp_path, model):
  (tmp_path / 'config.json').write_text(json.dumps(CONFIG))
  with pytest.raises(errors.FolderError, match='has neither model.safetens'):
    hub_folder.read_params(str(tmp_path), model[0])
  (tmp_path / 'model.safetensors').write_bytes(b'\x00' * 20)
  with pytest.raises(errors.FolderError, match='safetensors cannot be read'):
    hub_folder.read_params(str(tmp_path), model[0])


def test_run_without_a_folder_s_files_keeps_no_stop_ids(tmp_path):
  hub_folder.add_stop_ids(str(tmp_path), (3,))
  assert not list(tmp_path.iterdir())
