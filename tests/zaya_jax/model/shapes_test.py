# SPDX-License-Identifier: Apache-2.0
"""Shapes by formula against those of the model that is built."""

import jax
import pytest

from tests.support import tiny
from zaya_jax.model import shapes, zaya


@pytest.mark.parametrize(
  'changes',
  [
    {},
    {'tie_embeddings': False, 'head_bias': True, 'attention_bias': True},
    {'skip': 'off', 'num_layers': 1, 'conv_depthwise': 3, 'conv_grouped': 1},
    {'attention': 'gqa', 'router': 'linear', 'attention_bias': True},
    {'num_heads': 8, 'num_kv_heads': 2, 'head_dim': 4, 'd_expert': 12},
  ],
)
def test_shapes_are_those_of_the_model(changes):
  model = tiny.config(**changes)
  params = jax.eval_shape(lambda: zaya.init(model, jax.random.key(0)))[0]
  built = [
    (jax.tree_util.keystr(path, simple=True, separator='/'), leaf.shape)
    for path, leaf in jax.tree_util.tree_leaves_with_path(params)
  ]
  assert [*shapes.parameters(model).items()] == built  # In their order, too.
