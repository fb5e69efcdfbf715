# SPDX-License-Identifier: Apache-2.0
"""Bytes of a device against those of the real state and the compiled step."""

import math
import pathlib

import jax
import jax.numpy as jnp
import pytest

from zaya_jax import config as config_lib
from zaya_jax.checkpoint import arrays
from zaya_jax.parallel import mesh
from zaya_jax.plan.cost import division, memory
from zaya_jax.train import state as state_lib
from zaya_jax.train import step

FLAGFILE = pathlib.Path(__file__).parents[4] / 'configs' / 'quickstart.flags'


def _parse(*words):
  return config_lib.Config.parse([f'--flagfile={FLAGFILE}', *words])


def _state(config, devices):
  """The abstract state on the mesh of the run."""
  device_mesh = mesh.make_mesh(config.mesh, jax.devices()[:devices])
  with jax.set_mesh(device_mesh):
    state = jax.eval_shape(jax.jit(state_lib.make_init(config)))
  return device_mesh, arrays.on_mesh(state, device_mesh)


def _bytes(tree):
  """Of one device."""
  return sum(
    math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
    for leaf in jax.tree.leaves(tree)
  )


@pytest.mark.parametrize('devices', [1, 2, 8])
def test_state_is_divided_as_planned(devices):
  config = _parse(f'--plan.devices={devices}')
  plan = memory.plan(config, division.make(config), 4)
  _, state = _state(config, devices)
  assert plan.parameters == _bytes(state.params)
  held = _bytes((state.opt_state, state.balance_state))
  assert plan.optimizer == pytest.approx(held, rel=2e-3)


def test_fsdp_divides_parameters():
  config = _parse('--plan.devices=8', '--mesh.fsdp=4')
  plan = memory.plan(config, division.make(config), 4)
  _, state = _state(config, 8)
  # Vectors that four does not divide stay whole.
  assert plan.parameters == pytest.approx(_bytes(state.params), rel=0.03)


def test_memory_in_passing_is_about_that_of_the_compiler():
  config = _parse('--plan.devices=1', '--model.remat=block')
  device_mesh, state = _state(config, 1)
  shape = (config.data.batch_size, config.data.seq_len)
  names = ('tokens', 'targets', 'segment_ids', 'positions', 'weights')
  batch = {
    name: jax.ShapeDtypeStruct(
      shape,
      jnp.float32 if name == 'weights' else jnp.int32,
      sharding=mesh.sharding(device_mesh, 'batch', 'length'),
    )
    for name in names
  }
  with jax.set_mesh(device_mesh):
    run = jax.jit(step.make_train_step(config), donate_argnums=0)
    real = run.lower(state, batch).compile().memory_analysis()
  plan = memory.plan(config, division.make(config), 4)
  planned = plan.total - plan.parameters - plan.optimizer
  assert planned == pytest.approx(real.temp_size_in_bytes, rel=0.2)
