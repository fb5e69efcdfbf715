# SPDX-License-Identifier: Apache-2.0
"""The mesh, and the helpers that also work without one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from zaya_jax import config as config_lib
from zaya_jax import mesh as mesh_lib


def mesh(replica=0):
  return mesh_lib.make_mesh(config_lib.MeshConfig(replica=replica))


@pytest.mark.parametrize('replica, devices', [(0, 8), (1, 1), (4, 4)])
def test_mesh_takes_as_many_devices_as_asked_for(replica, devices):
  made = mesh(replica)
  assert (made.axis_names, made.size) == (('replica', 'fsdp'), devices)
  assert made.axis_types == (jax.sharding.AxisType.Explicit,) * 2


def test_too_many_devices_are_refused():
  with pytest.raises(
    config_lib.UsageError, match='--mesh.replica=9 times --mesh'
  ):
    mesh(9)


def test_parameters_divided_by_a_number_that_does_not_fit_are_refused():
  with pytest.raises(config_lib.UsageError, match='--mesh.fsdp=3 does not'):
    mesh_lib.make_mesh(config_lib.MeshConfig(fsdp=3))


def test_rows_are_cut_and_everything_else_is_whole():
  assert mesh_lib.spec('batch', None, 'width') == P(
    ('replica', 'fsdp'), None, None
  )


def loss(table, index, weights):
  """Takes rows of a table, and sums over the devices' shares of them."""
  rows = mesh_lib.take_rows(table, index)
  start = mesh_lib.zeros(rows.shape, 'batch', None, None)

  def local(rows, weights):
    return jnp.sum(jnp.sin(rows) * weights[None, None]), 2 * rows

  total, doubled = mesh_lib.per_device(
    local,
    in_axes=[('batch', None, None), (None,)],
    out_axes=['sum', ('batch', None, None)],
  )(start + rows, weights)
  return total, doubled


def test_shares_of_devices_sum_to_what_one_computes():
  keys = jax.random.split(jax.random.key(0), 3)
  table = jax.random.normal(keys[0], (5, 3))
  index = jax.random.randint(keys[1], (16, 4), 0, 5)
  weights = jax.random.normal(keys[2], (3,))
  grad = jax.value_and_grad(loss, argnums=(0, 2), has_aux=True)
  expected = jax.jit(grad)(table, index, weights)
  made = mesh()
  with jax.set_mesh(made):
    whole = mesh_lib.sharding(made)
    placed = [
      jax.device_put(table, whole),
      jax.device_put(index, mesh_lib.sharding(made, 'batch', None)),
      jax.device_put(weights, whole),
    ]
    found = jax.jit(grad)(*placed)
  assert found[0][1].addressable_shards[0].data.shape == (2, 4, 3)
  # Sums of 64 float32 numbers in another order.
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
    found,
    expected,
  )


def test_arrays_leave_the_mesh():
  placed = jax.device_put(jnp.arange(3.0), mesh_lib.sharding(mesh()))
  (found,) = mesh_lib.off_mesh([placed])
  assert jax.typeof(found) == jax.typeof(jnp.arange(3.0))
  assert jax.typeof(placed) != jax.typeof(found)
  np.testing.assert_array_equal(found, placed)
