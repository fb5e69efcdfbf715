# SPDX-License-Identifier: Apache-2.0
"""The training step traced without data: for a plan, or to see that it can be.

Engines of operations are asked for when a program is traced.
"""

import dataclasses

import jax
import jax.numpy as jnp

from zaya_jax import config as config_lib
from zaya_jax.checkpoint import arrays
from zaya_jax.parallel import mesh as mesh_lib
from zaya_jax.train import state as state_lib
from zaya_jax.train import step as step_lib


def trace(
  config: config_lib.Config, device_mesh: jax.sharding.Mesh
) -> jax.stages.Traced:
  """The step of a run on the shapes of its state and batch.

  Raises:
    dispatch.UnsupportedError: if an engine that --ops.* names cannot run.
  """
  step = jax.jit(step_lib.make_train_step(config), donate_argnums=0)
  with jax.set_mesh(device_mesh):
    return step.trace(*arguments(config, device_mesh))


def arguments(
  config: config_lib.Config, device_mesh: jax.sharding.Mesh
) -> tuple[state_lib.TrainState, dict[str, jax.ShapeDtypeStruct]]:
  """What the step of a run is given: shapes and places of state and batch."""
  shape = (config.data.batch_size, config.data.seq_len)
  rows = mesh_lib.sharding(device_mesh, 'batch', 'length')
  names = ('tokens', 'targets', 'segment_ids', 'positions')
  batch = {
    **{n: jax.ShapeDtypeStruct(shape, jnp.int32, sharding=rows) for n in names},
    'weights': jax.ShapeDtypeStruct(shape, jnp.float32, sharding=rows),
  }
  with jax.set_mesh(device_mesh):
    state = jax.eval_shape(jax.jit(state_lib.make_init(config)))
    state = arrays.on_mesh(state, device_mesh)
  frozen = state_lib.abstract_frozen(config, device_mesh)
  return dataclasses.replace(state, **frozen), batch
