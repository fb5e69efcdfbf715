# SPDX-License-Identifier: Apache-2.0
"""The layout of the first releases: names, shapes, settings and their traps."""

import dataclasses
import json
import re

import jax
import numpy as np
import pytest

import zaya_jax
from tests.zaya_jax.interop import folders
from zaya_jax import config as config_lib
from zaya_jax.interop import errors, hf, hf_config, hf_table
from zaya_jax.model import zaya

# As Zyphra published ZAYA1-base: one entry for each of the 80 sub-layers.
LISTS = {
  'model_type': 'zaya',
  'cca': True,
  'cca_num_q_heads': [8, 0] * 40,
  'num_query_groups_list': [2, 0] * 40,
  'ffn_hidden_size_list': [0, 4096] * 40,
  'zaya_layers': ['a', 16] * 40,
  'zaya_mlp_expansion': [0, 256] * 40,
  'num_hidden_layers': 80,
  'num_attention_heads': 16,
  'num_key_value_heads': 2,
  'hidden_size': 2048,
  'norm_epsilon': 1e-5,
  'rope_theta': 1000000,
  'rope_scaling': False,
  'partial_rotary_factor': 0.5,
  'residual_in_fp32': False,
  'sliding_window': None,
  'zaya_use_mod': True,
  'moe_router_topk': 1,
}
# The names, shapes and count of one layer as published: D = 2048.
SHAPES = {
  'model.embed_tokens.weight': (262272, 2048),
  'model.final_norm.weight': (2048,),
  'model.layers.0.res_scale.hidden_states_scale': (2048,),
  'model.layers.0.res_scale.hidden_states_bias': (2048,),
  'model.layers.1.res_scale.residual_bias': (2048,),
  'model.res_scale.residual_scale': (2048,),
  'model.layers.0.input_norm.weight': (2048,),
  'model.layers.79.input_norm.weight': (2048,),
  'model.layers.78.self_attn.qkv.linear_q.weight': (1024, 2048),
  'model.layers.0.self_attn.qkv.linear_k.weight': (256, 2048),
  'model.layers.0.self_attn.qkv.val_proj1.weight': (128, 2048),
  'model.layers.0.self_attn.qkv.val_proj2.weight': (128, 2048),
  'model.layers.0.self_attn.qkv.conv_qk.0.weight': (1280, 1, 2),
  'model.layers.0.self_attn.qkv.conv_qk.1.weight': (1280, 128, 2),
  'model.layers.0.self_attn.qkv.conv_qk.1.bias': (1280,),
  'model.layers.0.self_attn.qkv.temp': (2,),
  'model.layers.0.self_attn.o_proj.weight': (2048, 1024),
  'model.layers.1.zaya_block.router.down_proj.weight': (256, 2048),
  'model.layers.1.zaya_block.router.rmsnorm_eda.weight': (256,),
  'model.layers.3.zaya_block.router.router_states_scale': (256,),
  'model.layers.1.zaya_block.router.router_mlp.2.bias': (256,),
  'model.layers.1.zaya_block.router.router_mlp.4.weight': (17, 256),
  'model.layers.1.zaya_block.router.balancing_biases': (17,),
  'model.layers.1.zaya_block.experts.local_experts.15.linear_fc1.weight': (
    4096,
    2048,
  ),
  'model.layers.79.zaya_block.experts.local_experts.0.linear_fc2.weight': (
    2048,
    2048,
  ),
}
ABSENT = (
  'model.layers.0.res_scale.residual_scale',  # There is no residual yet.
  'model.layers.1.zaya_block.router.router_states_scale',
  'model.layers.80.res_scale.residual_scale',  # It is model.res_scale.
  'lm_head.weight',
)


def shapes(config: config_lib.ModelConfig, layout) -> dict[str, tuple]:
  trees = jax.eval_shape(lambda: zaya.init(config, jax.random.key(0)))
  found = {}
  tables = (hf_table.PARAMS, hf_table.BUFFERS)
  for rows, tree in zip(tables, trees, strict=True):
    leaves = hf_table.flatten(tree)
    for row in rows:
      if row.path in leaves:
        shape = leaves[row.path].shape
        for name, index in row.tensors(layout, shape):
          assert name not in found
          found[name] = row.shape_of(index, shape)
  return found


def test_first_release_has_these_tensors():
  found = shapes(hf_config.translate('config.json', LISTS), 'legacy')
  assert {name: found[name] for name in SHAPES} == SHAPES
  assert not found.keys() & set(ABSENT)
  # Of a count that others published, without the balancing biases.
  biases = 40 * 17
  assert sum(map(np.prod, found.values())) == 8_840_488_784 + biases


def test_both_layouts_hold_the_same_numbers():
  config = folders.model()
  count = lambda layout: sum(map(np.prod, shapes(config, layout).values()))
  assert count('legacy') == count('native')


def test_lists_of_the_first_release_are_read():
  assert hf_config.translate('config.json', LISTS) == config_lib.ModelConfig(
    num_layers=40,
    d_model=2048,
    num_heads=8,
    num_kv_heads=2,
    head_dim=128,
    num_experts=16,
    d_expert=2048,
    d_router=256,
    skip='identity',
    vocab_size=262272,
    rope_theta=1e6,
  )
  notes = ' '.join(hf_config.notes(LISTS))
  for words in ('--model.skip=identity', 'residual_in_fp32', 'fell back to'):
    assert words in notes


@pytest.mark.parametrize('layout', ['native', 'legacy'])
@pytest.mark.parametrize('skip', ['zero', 'identity', 'off'])
def test_settings_survive_the_round_trip(layout, skip):
  config = folders.model(
    skip=skip,
    conv_depthwise=3,
    rope_theta=123.0,
    rope_fraction=0.5,
    sliding_rope_theta=45.0,
    norm_eps=1e-4,
    init_std=0.1,
  )
  if (layout, skip) == ('native', 'off'):
    with pytest.raises(config_lib.UsageError, match='always has a skip class'):
      hf_config.to_hf(config, layout)
    return
  given = json.loads(json.dumps(hf_config.to_hf(config, layout)))
  assert hf_config.layout_of(given) == layout
  expected = 'off' if skip == 'off' else hf_config.SKIP[layout]
  found = hf_config.translate('config.json', given)
  assert found == dataclasses.replace(config, skip=expected, dtype='auto')


@pytest.mark.parametrize(
  'changes',
  [
    {'swa_layers': [4, 0] * 40},
    {'swa_layers': [4] * 40, 'sliding_window': 5},
    {'layer_types': ['sliding_attention'] * 40, 'sliding_window': 5},
  ],
)
def test_window_counts_the_token_itself(changes):
  found = hf_config.translate('config.json', LISTS | changes)
  assert found.sliding_window == 5
  assert found.sliding_layers == tuple(range(40))


def test_numbers_instead_of_lists_are_read():
  given = {
    'model_type': 'zaya',
    'num_hidden_layers': 6,
    'ffn_hidden_size': 10,
    'num_experts': 3,
    'zaya_mlp_expansion': 4,
    'num_attention_heads': 4,
    'num_query_groups': 2,
    'head_dim': 8,
    'hidden_size': 12,
    'zaya_use_mod': False,
    'moe_intermediate_size': None,
    'rope_parameters': {'rope_type': 'default', 'rope_theta': 7.0},
  }
  found = hf_config.translate('config.json', given)
  assert (found.num_layers, found.d_expert, found.d_router) == (3, 5, 4)
  assert (found.num_heads, found.num_kv_heads, found.head_dim) == (4, 2, 8)
  assert (found.skip, found.rope_theta) == ('off', 7.0)


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'clamp_temp': True}, 'clamp_temp is True; only False'),
    ({'moe_router_topk': 2}, 'moe_router_topk is 2; only 1'),
    ({'num_experts_per_tok': 2}, 'num_experts_per_tok is 2; only 1'),
    ({'zaya_use_eda': False}, 'zaya_use_eda is False'),
    ({'scale_residual_merge': False}, 'scale_residual_merge is False'),
    ({'add_bias_linear': True}, 'add_bias_linear is True'),
    ({'layernorm_epsilon': 1e-6}, 'layernorm_epsilon is 1e-06; only 1e-05'),
    ({'rope_theta': None}, 'has no rope_theta'),
    ({'rope_scaling': {'type': 'yarn'}}, "rope_type of rope_scaling is 'yarn'"),
    ({'zaya_layers': ['a', 16, 16, 'a']}, 'not attention and experts in turn'),
    ({'zaya_layers': ['a', 16, 'a', 8]}, 'only one value for all layers'),
    ({'zaya_layers': None, 'num_hidden_layers': 5}, '5 sub-layers are not'),
    ({'ffn_hidden_size_list': [0, 6, 0, 8]}, 'ffn_hidden_size_list is'),
    ({'swa_layers': [4, 0] * 20 + [6, 0] * 20}, 'swa_layers is'),
    ({'swa_layers': [4, 0]}, 'has 2 entries for 40 layers'),
    (
      {'swa_layers': [4, 0] * 40, 'sliding_window': 4},
      'sliding_window is 4, .* make it 5',
    ),
    ({'hidden_size': '2048'}, "hidden_size is '2048'; it must be a whole"),
    ({'zaya_mlp_expansion': True}, 'zaya_mlp_expansion is True; it must be'),
  ],
)
def test_what_our_model_cannot_be_is_named(changes, message):
  with pytest.raises(errors.FolderError, match=message):
    hf_config.translate('config.json', LISTS | changes)


def test_window_of_one_token_has_no_legacy_form():
  with pytest.raises(config_lib.UsageError, match='sliding_window=1'):
    hf_config.to_hf(folders.model(sliding_window=1), 'legacy')


def test_both_layouts_of_a_model_are_the_same_model(tmp_path):
  config = folders.model()
  values = {
    layout: folders.tensors(config, layout) for layout in ('native', 'legacy')
  }
  native, legacy = (
    zaya_jax.load(folders.write(tmp_path / layout, layout, found, config))
    for layout, found in values.items()
  )
  jax.tree.map(np.testing.assert_array_equal, native.params, legacy.params)
  jax.tree.map(np.testing.assert_array_equal, native.buffers, legacy.buffers)
  assert native.config == dataclasses.replace(legacy.config, skip='zero')


def test_swapped_names_are_noticed(tmp_path):
  config = folders.model()
  values = folders.tensors(config, 'legacy')
  wanted = hf.read_params(
    folders.write(tmp_path / 'right', 'legacy', values, config), config
  )
  first, second = (
    'model.layers.2.res_scale.residual_scale',
    'model.layers.3.res_scale.residual_scale',
  )
  values[first], values[second] = values[second], values[first]
  found = hf.read_params(
    folders.write(tmp_path / 'wrong', 'legacy', values, config), config
  )
  same = jax.tree.map(np.array_equal, found, wanted)
  wrong = {path for path, ok in hf_table.flatten(same[0]).items() if not ok}
  assert wrong == {
    'layers/moe_merge/residual_scale',
    'layers/attn_merge/residual_scale',
  }


def test_missing_expert_is_named(tmp_path):
  config = folders.model()
  values = folders.tensors(config, 'legacy')
  name = 'model.layers.3.zaya_block.experts.local_experts.1.linear_fc2.weight'
  del values[name]
  folder = folders.write(tmp_path / 'hf', 'legacy', values, config)
  with pytest.raises(errors.FolderError, match=re.escape(name)):
    hf.read_params(folder, config)
