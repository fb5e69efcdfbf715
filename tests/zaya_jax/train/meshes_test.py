# SPDX-License-Identifier: Apache-2.0
"""However a step is divided among devices, it is the step of one device."""

import dataclasses
import functools
import re

import jax
import numpy as np
import pytest

from tests.support import close, meshes, quick, tracing
from zaya_jax import config as config_lib
from zaya_jax.checkpoint import arrays
from zaya_jax.checkpoint.writing import manager
from zaya_jax.parallel import batch as batch_lib
from zaya_jax.parallel import expert_exchange, partition
from zaya_jax.parallel.context import halo
from zaya_jax.train import gradients
from zaya_jax.train import state as state_lib

# Of every parameter and every state of the optimizer after one step, and of
# the losses of 8: float32 sums in another order.
LEAF = 5e-5
LOSS = 1e-5


@functools.cache
def alone():
  return meshes.run(meshes.config_of())


def worst(found, expected):
  return max(jax.tree.leaves(jax.tree.map(close.error, found, expected)))


# The other axes are those of PARTS; step_test has `replica` alone, and
# context_test the ring.
@pytest.mark.parametrize('name', quick.only(meshes.SHAPES, 'zero_2_expert_4'))
def test_divided_steps_are_those_of_one_device(name):
  losses, first, _ = meshes.run(meshes.config_of(**meshes.SHAPES[name]))
  expected, first_of_one, _ = alone()
  np.testing.assert_allclose(losses, expected, rtol=LOSS)
  assert losses[-1] < 0.98 * losses[0]
  assert worst(first, first_of_one) < LEAF


PARTS = {'accumulation': 2, **meshes.SHAPES['all_but_zero']}


def test_parts_one_after_another_on_several_devices():
  losses, first, _ = meshes.run(meshes.config_of(**PARTS), steps=2)
  expected, first_of_one, _ = alone()
  np.testing.assert_allclose(losses, expected[:2], rtol=LOSS)
  assert worst(first, first_of_one) < LEAF


ADAPTED = {'zero_2_expert_4': 1, 'fsdp_8': 1, 'all_but_zero': 2}


@functools.cache
def adapted_alone():
  return meshes.run(meshes.config_of(rank=2), steps=2)


@pytest.mark.long
@pytest.mark.parametrize('name', ADAPTED)
def test_adapter_is_trained_as_on_one_device(name):
  how = {'rank': 2, 'accumulation': ADAPTED[name], **meshes.SHAPES[name]}
  config = meshes.config_of(**how)
  losses, first, last = meshes.run(config, steps=2)
  expected, first_of_one, _ = adapted_alone()
  np.testing.assert_allclose(losses, expected, rtol=LOSS)
  assert worst(first.own(), first_of_one.own()) < LEAF
  start = jax.device_get(meshes.first_state(config))
  moved = jax.tree.map(lambda a, b: (a != b).any(), start.params, last.params)
  assert all(jax.tree.leaves(moved))
  jax.tree.map(np.testing.assert_array_equal, start.base, last.base)


@functools.cache
def preferred_alone():
  return meshes.run(meshes.config_of(beta=0.5), steps=2)


PREFERRED = {'zero_2_expert_4': 1, 'fsdp_8': 1, 'fsdp_2_expert_2': 2}


@pytest.mark.parametrize('name', quick.only(list(PREFERRED), 'zero_2_expert_4'))
def test_preferences_are_trained_as_on_one_device(name):
  """Of all parameters: the reference is divided as they are, and stays."""
  how = {'accumulation': PREFERRED[name], **meshes.SHAPES[name]}
  config = meshes.config_of(beta=0.5, **how)
  losses, first, last = meshes.run(config, steps=2)
  expected, first_of_one, _ = preferred_alone()
  np.testing.assert_allclose(losses, expected, rtol=LOSS)
  assert losses[1] < losses[0]
  assert worst(first, first_of_one) < LEAF
  start = jax.device_get(meshes.first_state(config))
  jax.tree.map(np.testing.assert_array_equal, start.reference, last.reference)


@pytest.mark.long
def test_divided_tokens_move_the_bias_as_on_one_device():
  sizes = {'balance': 'quantile', **meshes.SHAPES['all_but_zero']}
  _, first, _ = meshes.run(meshes.config_of(**sizes), steps=1)
  one = meshes.config_of(balance='quantile')
  _, first_of_one, _ = meshes.run(one, steps=1)
  assert worst(first, first_of_one) < LEAF
  by_adam = alone()[1].buffers
  assert worst(first.buffers, by_adam) > 0.01


def halo_of_zeros(x, count, **kwargs):
  return 0 * LEFT(x, count, **kwargs)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3))
def not_summed(a, axes, dim, dtype):
  return GATHER(a, axes, dim, dtype)


def take_part(axes, dim, dtype, size, grad):
  del dtype
  first = jax.lax.axis_index(axes) * size
  return (jax.lax.dynamic_slice_in_dim(grad, first, size, dim),)


not_summed.defvjp(
  lambda a, *how: (not_summed(a, *how), a.shape[how[1]]), take_part
)


def experts_swapped(x, route):
  return SEND(x[::-1], route)


LEFT, GATHER = halo.left, partition._gather
SEND = expert_exchange._send
BROKEN = {
  'no_halo': ('gather_2', halo, 'left', halo_of_zeros),
  'no_sum': ('zero_2', partition, '_gather', not_summed),
  'wrong_rows': ('expert_2', expert_exchange, '_send', experts_swapped),
}


def first_when_patched(shape):
  config = meshes.config_of(**meshes.SHAPES[shape])
  return meshes.run(config, steps=1, compile_step=meshes.compile_step)[1]


@pytest.mark.long
@pytest.mark.parametrize('name', BROKEN)
def test_broken_division_is_noticed(name, monkeypatch):
  shape, module, function, instead = BROKEN[name]
  monkeypatch.setattr(module, function, instead)
  assert worst(first_when_patched(shape), alone()[1]) > 100 * LEAF


def test_broken_halo_is_noticed_by_the_loss(monkeypatch):
  config = meshes.config_of(**meshes.SHAPES['gather_2'])
  mesh, state = meshes.mesh_of(config), meshes.first_state(config)

  @jax.jit
  def loss(batch):
    made = gradients.loss_and_grads(config, state.params, state.buffers, batch)
    return made[0]

  monkeypatch.setattr(halo, 'left', halo_of_zeros)
  with jax.set_mesh(mesh):
    found = loss(batch_lib.put_batch(mesh, meshes.BATCH))
  assert abs(found / alone()[0][0] - 1) > 100 * LOSS


@pytest.mark.long
def test_a_row_out_of_order_is_noticed(monkeypatch):
  monkeypatch.setattr(batch_lib.zigzag, 'divide', lambda batch, n: batch)
  assert worst(first_when_patched('gather_2'), alone()[1]) > 100 * LEAF


@pytest.mark.parametrize(
  'name', quick.only(('zero_2_expert_4', 'zero_8', 'fsdp_8'), 'zero_2_expert_4')
)
def test_state_keeps_its_types_and_its_place(name):
  config = meshes.config_of(**meshes.SHAPES[name])
  before = meshes.first_state(config)
  types = jax.tree.map(lambda a: (jax.typeof(a), a.sharding), before)
  batch = batch_lib.put_batch(meshes.mesh_of(config), meshes.BATCH)
  after, _ = meshes.compiled(config)(before, batch)
  found = jax.tree.map(lambda a: (jax.typeof(a), a.sharding), after)
  assert found == types


# The first pair is compiled by other tests here.
MOVES = {
  'all_axes': (PARTS, meshes.SHAPES['zero_2_expert_4']),
  'zero_to_less': (meshes.SHAPES['zero_8'], meshes.SHAPES['zero_2']),
  'zero_to_fsdp': (meshes.SHAPES['zero_8'], meshes.SHAPES['fsdp_8']),
}


@pytest.mark.parametrize('name', quick.only(MOVES, 'all_axes'))
def test_state_of_eight_devices_goes_on_elsewhere(tmp_path, name):
  before, after = MOVES[name]
  config = meshes.config_of(**before)
  state, _ = advance(config, meshes.first_state(config))
  with manager.Manager(str(tmp_path), config_lib.CheckpointConfig()) as saved:
    saved.save(2, state, data_index=0, meta={})
    saved.wait()
    elsewhere = meshes.config_of(**after)
    mesh = meshes.mesh_of(elsewhere)
    with jax.set_mesh(mesh):
      init = jax.eval_shape(state_lib.make_init(elsewhere))
    restored, *_ = saved.restore(2, arrays.on_mesh(init, mesh))
  found, expected = jax.device_get((restored, state))
  jax.tree.map(np.testing.assert_array_equal, found, expected)
  _, found = advance(elsewhere, restored)
  _, expected = advance(config, state)
  np.testing.assert_allclose(found, expected, rtol=LOSS)


def advance(config, state):
  """Two steps on."""
  run, losses = meshes.compiled(config), []
  for _ in range(2):
    batch = batch_lib.put_batch(meshes.mesh_of(config), meshes.BATCH)
    state, measured = run(state, batch)
    losses.append(float(measured['train/loss']))
  return state, losses


@pytest.mark.parametrize('name', ['fsdp_2', 'zero_2'])
def test_gradients_are_summed_in_float32(name):
  """Of a model that computes in bfloat16, on a CPU: what is traced."""
  config = meshes.config_of(**meshes.SHAPES[name])
  model = dataclasses.replace(config.model, dtype='bfloat16')
  config = dataclasses.replace(config, model=model)
  mesh, state = meshes.mesh_of(config), meshes.first_state(config)
  with jax.set_mesh(mesh):
    traced = jax.make_jaxpr(
      lambda *args: gradients.loss_and_grads(config, *args)
    )(state.params, state.buffers, batch_lib.put_batch(mesh, meshes.BATCH))
  summed = [
    e.invars[0].aval
    for e in tracing.equations(traced)
    if e.primitive.name == 'reduce_scatter'
  ]
  experts = state.params['layers']['experts']['gate_up'].shape[1:]
  assert experts in {a.shape[-3:] for a in summed}
  assert {a.dtype for a in summed} == {np.dtype(np.float32)}


def test_shares_of_memory():
  """Parameters and states are divided among all devices, on any axes."""

  def share(tree):
    leaves = jax.tree.leaves(tree)
    held = sum(a.addressable_shards[0].data.size for a in leaves)
    return held / sum(a.size for a in leaves)

  for name in ('zero_8', 'zero_2_fsdp_4', 'zero_2_expert_4'):
    state = meshes.first_state(meshes.config_of(**meshes.SHAPES[name]))
    layers = state.params['layers']
    assert share(layers['attn']['q']) == share(layers['experts']) == 1 / 8
    # A tiny model has vectors that 8 does not divide.
    for tree in (state.params, state.opt_state):
      assert 1 / 8 <= share(tree) < 1 / 6


@pytest.mark.parametrize(
  'axes, data, message',
  [
    ({'replica': 8}, {'batch_size': 12}, '--data.batch_size=12 must be a mult'),
    ({'expert': 3}, {'batch_size': 9}, '--mesh.expert=3 does not divide'),
    (
      {'context': 2},
      {'seq_len': 34, 'record_tokens': 68},
      '--data.seq_len=34 is no multiple of 4',
    ),
    ({'context': 8}, {'seq_len': 16}, 'take at least 32 tokens'),
  ],
)
def test_axes_that_divide_nothing_equally_are_refused(axes, data, message):
  config = meshes.config_of(**axes)
  data = config_lib.DataConfig(**{'batch_size': 8, **data})
  config = dataclasses.replace(config, data=data)
  with pytest.raises(config_lib.UsageError, match=re.escape(message)):
    state_lib.check(config, meshes.mesh_of(config))


def test_axes_that_divide_equally_are_not():
  refused = set()
  for name, sizes in {**meshes.SHAPES, 'expert_3': {'expert': 3}}.items():
    config = meshes.config_of(**sizes)
    try:
      state_lib.check(config, meshes.mesh_of(config))
    except config_lib.UsageError:
      refused.add(name)
  assert refused == {'expert_3'}
