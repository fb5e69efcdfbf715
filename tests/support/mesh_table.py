# SPDX-License-Identifier: Apache-2.0
"""Twenty steps of a tiny model on one mesh after another, in one program.

Started in several processes, `python -m tests.support.mesh_table OUT MESH ...`
writes the losses of each mesh as JSON; imported, `losses` gives those of one
mesh on the devices of this process.
"""

import dataclasses
import functools
import json
import pathlib
import sys
from collections.abc import Sequence

import jax
import numpy as np

from tests.support import tiny
from zaya_jax import config as config_lib
from zaya_jax.checkpoint import arrays
from zaya_jax.parallel import batch as batch_lib
from zaya_jax.parallel import mesh as mesh_lib
from zaya_jax.runtime import processes, session
from zaya_jax.train import state as state_lib
from zaya_jax.train import step

STEPS, ROWS, LENGTH = 20, 16, 32


def losses(mesh_flags: Sequence[str]) -> list[float]:
  """The loss of each step on the mesh of these flags, on all devices."""
  config = config_lib.Config(
    num_steps=STEPS,
    model=tiny.config(num_layers=1, num_experts=4),
    data=config_lib.DataConfig(seq_len=LENGTH, batch_size=ROWS),
    mesh=config_lib.Config.parse(mesh_flags).mesh,
    optim=config_lib.OptimConfig(warmup_steps=2, lr=1e-2),
  )
  whole = _initial_state(
    dataclasses.replace(config, mesh=config_lib.MeshConfig())
  )
  mesh = mesh_lib.make_mesh(config.mesh)
  index, count = mesh_lib.data_shard(mesh)
  found = []
  with jax.set_mesh(mesh):
    there = arrays.on_mesh(jax.eval_shape(state_lib.make_init(config)), mesh)
    state = jax.tree.map(_put, whole, there)
    train_step = jax.jit(step.make_train_step(config), donate_argnums=0)
    for i in range(STEPS):
      rows = tiny.batch(config.model, ROWS, LENGTH, seed=i % 2)
      mine = {k: np.split(a, count)[index] for k, a in rows.items()}
      state, measured = train_step(state, batch_lib.put_batch(mesh, mine))
      found.append(measured['train/loss'])
  return [float(loss) for loss in found]


@functools.cache
def _initial_state(config: config_lib.Config) -> state_lib.TrainState:
  """NumPy arrays; compiled once, for any mesh."""
  return jax.tree.map(np.asarray, jax.jit(state_lib.make_init(config))())


def _put(whole: np.ndarray, there: jax.ShapeDtypeStruct) -> jax.Array:
  return jax.make_array_from_callback(
    whole.shape, there.sharding, lambda index: whole[index]
  )


def main() -> None:
  """Runs all meshes; process 0 writes OUT."""
  out, *meshes = sys.argv[1:]
  config = config_lib.Config(run_dir=str(pathlib.Path(out).parent))
  with session.join(config, '\n'.join(meshes)):
    table = {mesh: losses(mesh.split()) for mesh in meshes}
    if processes.process() == 0:
      pathlib.Path(out).write_text(json.dumps(table))


if __name__ == '__main__':
  main()
