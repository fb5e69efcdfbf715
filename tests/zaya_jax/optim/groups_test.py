# SPDX-License-Identifier: Apache-2.0
"""The group of every parameter, written out a second time."""

import jax
import pytest

from tests.support import tiny
from zaya_jax.model import zaya
from zaya_jax.optim import groups as groups_lib

# The longest list of parameters that a model can have.
EVERYTHING = {
  'tie_embeddings': False,
  'head_bias': True,
  'attention_bias': True,
}

MUON = """
  attn/q attn/k attn/v_current attn/v_delayed attn/out
  router/down router/fc1 router/fc2 router/out
  experts/gate_up experts/down
"""
DECAY = 'embed head attn/conv_grouped'
PLAIN = """
  head_bias input_scale input_bias final_norm
  attn_norm moe_norm
  attn/q_bias attn/k_bias attn/v_current_bias attn/v_delayed_bias attn/out_bias
  attn/conv_depthwise attn/conv_depthwise_bias attn/conv_grouped_bias
  attn/temperature
  attn_merge/branch_scale attn_merge/branch_bias
  attn_merge/residual_scale attn_merge/residual_bias
  moe_merge/branch_scale moe_merge/branch_bias
  moe_merge/residual_scale moe_merge/residual_bias
  router/down_bias router/eda router/norm router/fc1_bias router/fc2_bias
"""
EXPECTED = {
  name: group
  for group, names in {'muon': MUON, 'decay': DECAY, 'plain': PLAIN}.items()
  for name in names.split()
}


def shapes(**changes):
  model = tiny.config(**changes)
  return jax.eval_shape(lambda: zaya.init(model, jax.random.key(0)))[0]


def groups(params, optimizer='muon'):
  found = groups_lib.table(params, optimizer=optimizer)
  return {name.removeprefix('layers/'): group for name, group, _, _ in found}


def test_every_parameter_is_in_the_group_written_here():
  assert groups(shapes(**EVERYTHING)) == EXPECTED


def test_muon_gets_stacks_of_matrices_and_nothing_else():
  for name, group, shape, _ in groups_lib.table(
    shapes(**EVERYTHING), optimizer='muon'
  ):
    if group == 'muon':
      assert shape.count('x') in (2, 3), name  # Layers, [experts,] matrix.
    assert group != 'muon' or not any(
      word in name for word in ('embed', 'head', 'conv', 'norm', 'bias')
    )


def test_adamw_takes_the_matrices_with_decay():
  expected = {
    name: 'decay' if group == 'muon' else group
    for name, group in EXPECTED.items()
  }
  assert groups(shapes(**EVERYTHING), optimizer='adamw') == expected


@pytest.mark.parametrize('place', ['layers', 'top'])
def test_parameter_without_a_group_is_refused(place):
  params = shapes()
  target = params['layers']['attn'] if place == 'layers' else params
  target['novel'] = params['embed']
  with pytest.raises(KeyError, match='novel'):
    groups_lib.label(params, optimizer='muon')


def test_same_name_elsewhere_is_another_parameter():
  params = shapes()
  params['q'] = params['layers']['attn']['q']
  with pytest.raises(KeyError, match="'q'"):
    groups_lib.label(params, optimizer='muon')


def test_table_counts_parameters():
  rows = {
    row[0]: row[1:] for row in groups_lib.table(shapes(), optimizer='muon')
  }
  assert rows['embed'] == ('decay', '40x16', 640)
  assert rows['layers/experts/gate_up'] == ('muon', '2x3x16x16', 1536)
  assert {row[0] for row in rows.values()} <= set(groups_lib.MEANING)
