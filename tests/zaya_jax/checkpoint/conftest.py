# SPDX-License-Identifier: Apache-2.0
"""A small training state, saved, and programs run beside the tests."""

import dataclasses
import os
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from zaya_jax import config as config_lib
from zaya_jax.checkpoint.writing import manager


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State:
  """Everything that a training state may hold."""

  step: Any
  params: Any
  buffers: Any
  opt_state: Any
  rng: Any


@pytest.fixture
def make_state():
  """A function (seed, shards) -> state on that many of the devices."""

  def make(seed: int = 0, shards: int = 1) -> State:
    mesh = jax.make_mesh(
      (shards,), ('replica',), devices=jax.devices()[:shards]
    )
    key = jax.random.key(seed)
    params = {
      'blocks': {'w': jax.random.normal(key, (16, 8))},
      'scale': jnp.ones((3,), jnp.bfloat16),
    }
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))
    state = State(
      jnp.int32(seed),
      params,
      {'bias': jax.random.normal(key, (2, 5))},
      optimizer.init(params),
      jax.random.key_data(key),
    )

    def place(x):
      spec = P('replica') if x.shape[:1] == (16,) else P()
      return jax.device_put(x, NamedSharding(mesh, spec))

    return jax.tree.map(place, state)

  return make


@pytest.fixture
def make_manager(tmp_path):
  """A function: settings of checkpoints -> manager of the run 'run'."""

  def make(**settings) -> manager.Manager:
    config = config_lib.CheckpointConfig(**settings)
    return manager.Manager(str(tmp_path / 'run'), config)

  return make


@pytest.fixture
def saved(make_manager, make_state, tmp_path):
  """The path of a checkpoint of `make_state(1)` at step 4, data index 64."""
  with make_manager() as checkpoints:
    checkpoints.save(
      4,
      make_state(1),
      data_index=64,
      meta={'metrics': {'val/bpb': 2.5, 'train/loss': 3.5}, 'tokens': 1024},
    )
  return tmp_path / 'run' / 'checkpoints' / '4'


@pytest.fixture
def run_python():
  """A function that runs a script: (text, *args, devices) -> its process."""

  def run(script: str, *args, devices: int = 1) -> subprocess.CompletedProcess:
    flag = f'--xla_force_host_platform_device_count={devices}'
    flag = f'{os.environ["XLA_FLAGS"]} {flag}'  # The later one wins.
    path = os.pathsep.join(filter(None, sys.path))
    return subprocess.run(
      [sys.executable, '-W', 'error', '-c', script, *map(str, args)],
      env={**os.environ, 'XLA_FLAGS': flag, 'PYTHONPATH': path},
      capture_output=True,
      text=True,
      timeout=120,
      check=False,
    )

  return run


def abstract(tree: Any) -> Any:
  """The shapes, types and shardings of a tree."""
  return jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), tree
  )


@pytest.fixture(name='abstract')
def abstract_fixture():
  """The function `abstract`."""
  return abstract
