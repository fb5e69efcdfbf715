# SPDX-License-Identifier: Apache-2.0
"""Names of leaves, and what is said about two trees that differ."""

import jax
import jax.numpy as jnp

from zaya_jax.checkpoint import arrays


def test_classes_of_containers_do_not_change_names(make_state):
  state = make_state()
  names = arrays.describe(state)
  assert names['params/blocks/w'] == 'float32[16,8]'
  assert names['params/scale'] == 'bfloat16[3]'
  assert names['opt_state/1/0/mu/blocks/w'] == 'float32[16,8]'
  assert names['step'] == 'int32[]'


def test_differences_name_leaf_and_both_sides():
  saved = arrays.describe({'a': jnp.zeros((2, 3)), 'old': jnp.zeros(1)})
  wanted = arrays.describe({'a': jnp.zeros((2, 4)), 'new': jnp.zeros(1)})
  text = arrays.differences(saved, wanted)
  assert 'a is float32[2,3] in the checkpoint and float32[2,4] here' in text
  assert 'old is float32[1] in the checkpoint and absent here' in text
  assert 'new is absent in the checkpoint and float32[1] here' in text
  assert not arrays.differences(saved, saved)


def test_many_differences_are_counted_rather_than_listed():
  saved = {f'leaf{i}': 'float32[1]' for i in range(9)}
  assert arrays.differences(saved, {}).endswith('; 4 more')


def test_abstract_tree_lands_on_devices_of_mesh():
  mesh = jax.make_mesh((8,), ('replica',))
  with jax.set_mesh(mesh):
    split = jax.sharding.PartitionSpec('replica')

    def init():
      return {
        'w': jax.sharding.reshard(jnp.zeros((8, 2)), split),
        'step': jnp.int32(0),
      }

    placed = arrays.on_mesh(jax.eval_shape(init), mesh)
    made = jax.jit(init)()
  for name, leaf in made.items():
    assert placed[name].sharding.is_equivalent_to(leaf.sharding, leaf.ndim)
