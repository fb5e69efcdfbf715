# SPDX-License-Identifier: Apache-2.0
"""The mesh, and the helpers that also work without one."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from zaya_jax import config as config_lib
from zaya_jax.parallel import mesh as mesh_lib


def mesh(replica=0):
  return mesh_lib.make_mesh(config_lib.MeshConfig(replica=replica))


@pytest.mark.parametrize('replica, devices', [(0, 8), (1, 1), (4, 4)])
def test_mesh_takes_as_many_devices_as_asked_for(replica, devices):
  made = mesh(replica)
  assert (made.axis_names, made.size) == (mesh_lib.AXES, devices)
  assert made.axis_types == (jax.sharding.AxisType.Explicit,) * 4


def test_what_talks_most_are_neighbours():
  made = mesh_lib.make_mesh(
    config_lib.MeshConfig(replica=2, expert=2, context=2)
  )
  ids = [[d.id for d in group.flat] for group in made.devices.reshape(2, 1, 4)]
  assert ids == [[0, 1, 2, 3], [4, 5, 6, 7]]
  assert [d.id for d in made.devices[0, 0, :, 0]] == [0, 2]


def test_too_many_devices_are_refused():
  with pytest.raises(
    config_lib.UsageError, match='--mesh.replica=9 times --mesh'
  ):
    mesh(9)


@pytest.mark.parametrize('axis', ['fsdp', 'expert', 'context'])
def test_an_axis_that_does_not_fit_is_refused(axis):
  with pytest.raises(config_lib.UsageError, match=f'--mesh.{axis}=3 does not'):
    mesh_lib.make_mesh(config_lib.MeshConfig(**{axis: 3}))


def test_named_replicas_may_leave_devices():
  config = config_lib.MeshConfig(replica=2, fsdp=3)
  assert mesh_lib.make_mesh(config, jax.devices()[:7]).size == 6


def shard_of(monkeypatch, mine, parts):
  """`data_shard` of a process that has these parts of a batch."""
  places = {part: (slice(part, part + 1),) for part in mine}
  rows = types.SimpleNamespace(addressable_devices_indices_map=lambda _: places)
  monkeypatch.setattr(mesh_lib, 'sharding', lambda *_: rows)
  return mesh_lib.data_shard(types.SimpleNamespace(shape={'replica': parts}))


@pytest.mark.parametrize(
  'mine, parts, shard',
  [([0, 1], 4, (0, 2)), ([2, 3], 4, (1, 2)), ([2], 3, (2, 3))],
)
def test_each_process_reads_its_rows(monkeypatch, mine, parts, shard):
  assert shard_of(monkeypatch, mine, parts) == shard


@pytest.mark.parametrize(
  'mine, parts', [([], 4), ([0, 2], 4), ([1, 2], 4), ([2, 3], 5)]
)
def test_parts_that_are_no_shard_are_refused(monkeypatch, mine, parts):
  with pytest.raises(config_lib.UsageError, match=f'of {parts} of a batch'):
    shard_of(monkeypatch, mine, parts)


def test_rows_and_tokens_are_cut_and_everything_else_is_whole():
  assert mesh_lib.spec('batch', 'length', 'width') == P(
    ('replica', 'fsdp', 'expert'), ('context',), None
  )


def loss(table, index, weights):
  """Of this device's rows; and these, doubled."""
  rows = table[index]
  return jnp.sum(jnp.sin(rows) * weights[None, None]), 2 * rows


def loss_and_grads(table, index, weights):
  (value, rows), grads = jax.value_and_grad(loss, argnums=(0, 2), has_aux=True)(
    table, index, weights
  )
  return *mesh_lib.total((value, grads)), rows


def test_shares_of_devices_sum_to_what_one_computes():
  keys = jax.random.split(jax.random.key(0), 3)
  table = jax.random.normal(keys[0], (5, 3))
  index = jax.random.randint(keys[1], (16, 4), 0, 5)
  weights = jax.random.normal(keys[2], (3,))
  expected = jax.jit(loss_and_grads)(table, index, weights)
  made, rows = mesh(), mesh_lib.spec('batch', 'length')
  with jax.set_mesh(made):
    run = mesh_lib.on_each(
      loss_and_grads, in_specs=(P(), rows, P()), out_specs=(P(), P(), rows)
    )
    found = jax.jit(run)(
      jax.device_put(table, mesh_lib.sharding(made)),
      jax.device_put(index, mesh_lib.sharding(made, 'batch', 'length')),
      jax.device_put(weights, mesh_lib.sharding(made)),
    )
  assert found[2].addressable_shards[0].data.shape == (2, 4, 3)
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
