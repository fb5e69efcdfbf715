# SPDX-License-Identifier: Apache-2.0
"""Names of leaves, and where they are put."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from zaya_jax.checkpoint import arrays, errors


def test_classes_of_containers_do_not_change_names(make_state):
  state = make_state()
  names = arrays.describe(state)
  assert names['params/blocks/w'] == 'float32[16,8]'
  assert names['params/scale'] == 'bfloat16[3]'
  assert names['opt_state/1/0/mu/blocks/w'] == 'float32[16,8]'
  assert names['step'] == 'int32[]'


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


@pytest.mark.parametrize('devices', [1, 8])
@pytest.mark.parametrize('value', [np.nan, np.inf, -np.inf, None])
@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
def test_no_array_may_hold_nan_or_inf(devices, value, dtype):
  mesh = jax.make_mesh((devices,), ('x',), devices=jax.devices()[:devices])
  sharding = NamedSharding(mesh, P('x'))
  values = np.arange(16.0)
  if value is not None:
    values[11] = value
  tree = {
    'good': jax.device_put(jnp.zeros(8, dtype), sharding),
    'bad': jax.device_put(jnp.asarray(values, dtype), sharding),
  }
  if value is None:
    arrays.check_finite('here', tree)
    return
  with pytest.raises(errors.CheckpointError, match='here holds .* in bad;'):
    arrays.check_finite('here', tree)
