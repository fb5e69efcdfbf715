# SPDX-License-Identifier: Apache-2.0
"""ZeRO-1 and Muon on several devices against the same on one."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import close, tiny
from zaya_jax import config as config_lib
from zaya_jax import mesh as mesh_lib
from zaya_jax import step as step_lib
from zaya_jax.checkpoint import arrays, manager
from zaya_jax.optim import muon
from zaya_jax.optim import optimizer as optimizer_lib

# 3 layers: no number of devices divides the matrices of attention.
MODEL = tiny.config(num_layers=3, d_expert=16, num_experts=4, d_router=16)
OPTIM = config_lib.OptimConfig(warmup_steps=1)
CONFIG = config_lib.Config(
  model=MODEL, optim=OPTIM, data=config_lib.DataConfig(batch_size=8)
)
BATCH = tiny.batch(MODEL, rows=8, length=12)


def mesh_of(devices, fsdp=1):
  return mesh_lib.make_mesh(
    config_lib.MeshConfig(replica=devices // fsdp, fsdp=fsdp)
  )


@functools.cache
def after_steps(devices, steps=3):
  """Parameters and state after updates with drawn gradients."""
  params, _ = tiny.arrays(MODEL)
  optimizer = optimizer_lib.make_optimizer(OPTIM, 10)
  mesh = mesh_of(devices)
  rng = np.random.default_rng(0)
  with jax.set_mesh(mesh):
    params = jax.device_put(params, mesh_lib.sharding(mesh))
    state = jax.jit(optimizer.init)(params)

    @jax.jit
    def update(params, state, grads):
      updates, state = optimizer.update(grads, state, params)
      return jax.tree.map(jnp.add, params, updates), state

    for _ in range(steps):
      grads = jax.tree.map(
        lambda p: rng.normal(size=p.shape).astype(np.float32), params
      )
      grads = jax.device_put(grads, mesh_lib.sharding(mesh))
      params, state = update(params, state, grads)
  return params, state


@pytest.mark.parametrize('devices', [2, 4, 8])
def test_several_devices_update_as_one_does(devices):
  (found, state), (expected, alone) = map(after_steps, (devices, 1))
  host = lambda tree: jax.tree.map(np.asarray, tree)
  close.assert_close(host(found), host(expected), 5 * close.FLOAT32_DEEP)
  close.assert_close(host(state), host(alone), 5 * close.FLOAT32_DEEP)
  # Parameters stay whole on every device.
  for leaf in jax.tree.leaves(found):
    assert leaf.sharding.is_fully_replicated


@pytest.mark.parametrize('devices', [2, 4, 8])
def test_each_device_keeps_its_part_of_the_state(devices):
  whole = undivided = 0
  for leaf in jax.tree.leaves(after_steps(devices)[1]):
    divisible = any(size % devices == 0 for size in leaf.shape)
    part = leaf.addressable_shards[0].data.size
    assert part == (leaf.size // devices if divisible else leaf.size)
    whole += leaf.size
    undivided += 0 if divisible else leaf.size
  assert undivided < 0.1 * whole


SHAPES = [(3, 8, 4), (3, 4, 8), (2, 3, 8, 8), (8, 8), (5, 6, 3)]


def stacks():
  rng = np.random.default_rng(1)
  return [jnp.asarray(rng.normal(size=s), jnp.float32) for s in SHAPES]


@pytest.mark.parametrize('devices', [2, 8])
def test_each_matrix_is_treated_alone_wherever_it_lies(devices):
  one = functools.partial(muon.orthogonalize, steps=5, dtype=None)
  expected = [one(u) for u in stacks()]
  mesh = mesh_of(devices)
  with jax.set_mesh(mesh):
    run = jax.jit(
      lambda leaves: mesh_lib.gather(
        muon.orthogonalize_on_mesh(
          mesh_lib.scatter(leaves), steps=5, dtype=None
        )
      )
    )
    given = jax.device_put(stacks(), mesh_lib.sharding(mesh))
    found = run(given)
    inside = primitives_inside(jax.make_jaxpr(run)(given).jaxpr)
  assert [a.shape for a in found] == SHAPES
  close.assert_close(
    [np.asarray(a) for a in found], expected, 5 * close.FLOAT32_DEEP
  )
  assert 'dot_general' in inside
  sends = {'psum', 'all_gather', 'ppermute', 'all_to_all', 'reshard'}
  assert not {name.partition('_invariant')[0] for name in inside} & sends


def primitives_inside(jaxpr, within=False):
  """Names of the primitives within the parts that run on one device."""
  names = set()
  for eqn in jaxpr.eqns:
    here = within or eqn.primitive.name == 'shard_map'
    if within:
      names.add(eqn.primitive.name)
    for value in eqn.params.values():
      for inner in jax.tree.leaves(value, is_leaf=lambda x: hasattr(x, 'eqns')):
        inner = getattr(inner, 'jaxpr', inner)
        if hasattr(inner, 'eqns'):
          names |= primitives_inside(inner, here)
  return names


def place(*shape):
  with jax.set_mesh(mesh_of(*shape)):
    abstract = jax.eval_shape(step_lib.make_init(CONFIG))
  return arrays.on_mesh(abstract, mesh_of(*shape))


@functools.cache
def step_of(*shape):
  """A function (state, steps) -> (state, loss of the last step)."""
  mesh = mesh_of(*shape)
  run = jax.jit(step_lib.make_train_step(CONFIG))

  def steps(state, count):
    with jax.set_mesh(mesh):
      for _ in range(count):
        state, measured = run(state, step_lib.put_batch(mesh, BATCH))
    return state, float(measured['train/loss'])

  return steps


def first_state(*shape):
  with jax.set_mesh(mesh_of(*shape)):
    return jax.jit(step_lib.make_init(CONFIG))()


@pytest.mark.parametrize('shape', [(2, 2), (4, 2), (8, 8)])
def test_divided_parameters_learn_as_whole_ones(shape):
  state = first_state(*shape)
  for name in ('q', 'out'):
    leaf = state.params['layers']['attn'][name]
    assert leaf.addressable_shards[0].data.size == leaf.size // shape[1]
  experts = state.params['layers']['experts']['gate_up']
  assert experts.addressable_shards[0].data.size == experts.size // shape[1]
  found, loss = step_of(*shape)(state, 3)
  expected, loss_of_one = step_of(1)(first_state(1), 3)
  assert loss == pytest.approx(loss_of_one, rel=1e-5)
  moved = lambda state: jax.tree.map(np.asarray, state.params['layers'])
  close.assert_close(moved(found), moved(expected), 1e-2)
  assert jax.tree.map(jax.typeof, found) == jax.tree.map(jax.typeof, state)


@pytest.mark.parametrize('after', [(2,), (4, 4)])
def test_state_of_eight_devices_goes_on_elsewhere(tmp_path, after):
  state, _ = step_of(8)(first_state(8), 2)
  with manager.Manager(str(tmp_path), config_lib.CheckpointConfig()) as saved:
    saved.save(2, state, data_index=0, meta={})
    saved.wait()
    restored, *_ = saved.restore(2, place(*after))
  for ours, theirs in zip(
    jax.tree.leaves(restored), jax.tree.leaves(state), strict=True
  ):
    np.testing.assert_array_equal(ours, theirs)
  _, found = step_of(*after)(restored, 3)
  _, expected = step_of(8)(state, 3)
  assert found == pytest.approx(expected, rel=1e-5)
