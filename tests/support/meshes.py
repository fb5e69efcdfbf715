# SPDX-License-Identifier: Apache-2.0
"""Every way to divide a step, and a tiny run divided so."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from tests.support import tiny
from zaya_jax import config as config_lib
from zaya_jax.checkpoint import arrays
from zaya_jax.parallel import batch as batch_lib
from zaya_jax.parallel import mesh as mesh_lib
from zaya_jax.train import state as state_lib
from zaya_jax.train import step as step_lib

RING = {'context_mode': 'ring'}
# Name -> sizes of the axes, the others are 1.
SHAPES = {
  'zero_2': {'replica': 2},
  'zero_4': {'replica': 4},
  'zero_8': {'replica': 8},
  'fsdp_2': {'fsdp': 2},
  'fsdp_8': {'fsdp': 8},
  'zero_2_fsdp_4': {'replica': 2, 'fsdp': 4},
  'expert_2': {'expert': 2},
  'expert_8': {'expert': 8},
  'zero_2_expert_4': {'replica': 2, 'expert': 4},
  'fsdp_2_expert_2': {'fsdp': 2, 'expert': 2},
  'gather_2': {'context': 2},
  'gather_8': {'context': 8},
  'ring_4': {'context': 4, **RING},
  'zero_2_ring_2': {'replica': 2, 'context': 2, **RING},
  'fsdp_2_gather_4': {'fsdp': 2, 'context': 4},
  'expert_4_ring_2': {'expert': 4, 'context': 2, **RING},
  'all_but_zero': {'fsdp': 2, 'expert': 2, 'context': 2},
}

# Three layers: no number of devices divides the matrices of attention.
MODEL = tiny.config(num_layers=3, num_experts=8, d_expert=16, d_router=16)
BATCH = tiny.batch(MODEL, rows=8, length=32)


def config_of(
  accumulation: int = 1,
  balance: str = 'adam',
  rank: int = 0,
  beta: float = 0.0,
  **sizes: Any,
) -> config_lib.Config:
  """The settings of the tiny run under a mesh.

  Balanced by Adam: the rule 'quantile' moves the bias to between two tokens,
  which are so near in a model of this size that after some steps rounding sends
  one of them elsewhere.
  """
  return config_lib.Config(
    num_steps=20,
    model=MODEL,
    data=config_lib.DataConfig(batch_size=8, seq_len=32),
    optim=config_lib.OptimConfig(
      warmup_steps=4, accumulation=accumulation, balance=balance
    ),
    lora=config_lib.LoraConfig(rank=rank, alpha=3.0),
    dpo=config_lib.DpoConfig(beta=beta),
    mesh=config_lib.MeshConfig(**{'replica': 1, **sizes}),
  )


def mesh_of(config: config_lib.Config) -> jax.sharding.Mesh:
  """The mesh of a run, on the first devices."""
  return mesh_lib.make_mesh(config.mesh)


def first_state(config: config_lib.Config) -> state_lib.TrainState:
  """Step 0 with the parameters of `tiny`, placed on the mesh of the run.

  With a rank these are the base, and no factor of the adapter is 0. With a beta
  the reference is near them.
  """
  mesh = mesh_of(config)
  with jax.set_mesh(mesh):
    place = arrays.on_mesh(jax.eval_shape(state_lib.make_init(config)), mesh)
  # Of NumPy: jax would compile for each shape how to divide it.
  params, buffers = jax.tree.map(np.asarray, tiny.arrays(config.model))
  state = jax.tree.map(lambda s: np.zeros(s.shape, s.dtype), place)
  if config.lora.rank:
    rng = np.random.default_rng(0)
    draw = lambda a: (0.1 * rng.normal(size=a.shape)).astype(a.dtype)
    frozen = state_lib.abstract_frozen(config, mesh)
    place = dataclasses.replace(place, **frozen)
    state = dataclasses.replace(state, base=params)
    params = jax.tree.map(draw, state.params)
  elif config.dpo.beta:
    place = dataclasses.replace(
      place, **state_lib.abstract_frozen(config, mesh)
    )
    near = jax.tree.map(lambda a: (1.02 * a).astype(a.dtype), params)
    state = dataclasses.replace(state, reference=near)
  state = dataclasses.replace(state, params=params, buffers=buffers)
  return jax.device_put(state, jax.tree.map(lambda s: s.sharding, place))


def compile_step(config: config_lib.Config) -> Any:
  """The step of a run, compiled; it donates its state."""
  mesh = mesh_of(config)
  step = jax.jit(step_lib.make_train_step(config), donate_argnums=0)
  with jax.set_mesh(mesh):
    batch = batch_lib.put_batch(mesh, BATCH)
    return step.lower(first_state(config), batch).compile()


# Once for all tests, of the program as it is: not where a test has patched it.
compiled = functools.cache(compile_step)


def run(
  config: config_lib.Config,
  steps: int = 8,
  compile_step: Callable[[config_lib.Config], Any] = compiled,
) -> tuple[list[float], state_lib.TrainState, state_lib.TrainState]:
  """Losses of some steps on one batch, the states after the first and last."""
  step = compile_step(config)
  batch = batch_lib.put_batch(mesh_of(config), BATCH)
  state, losses, first = first_state(config), [], None
  for _ in range(steps):
    state, measured = step(state, batch)
    losses.append(float(measured['train/loss']))
    first = jax.device_get(state) if first is None else first
  return losses, first, jax.device_get(state)
