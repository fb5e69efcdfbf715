# SPDX-License-Identifier: Apache-2.0
"""The frozen parameters beside an adapter, on the devices of a run."""

import os
from typing import Any

import jax
import numpy as np

from zaya_jax import config as config_lib
from zaya_jax.checkpoint import arrays
from zaya_jax.hub.adapters import adapter
from zaya_jax.model import layers, shapes
from zaya_jax.parallel import partition


def begin(
  config: config_lib.Config, mesh: jax.sharding.Mesh, like: Any
) -> tuple[Any, Any, adapter.Base]:
  """The base of a new adapter, from `--restore`.

  Args:
    config: of the run.
    mesh: of its devices.
    like: buffers as the run has them.

  Returns:
    Parameters and buffers on the mesh, and what checkpoints call the base.

  Raises:
    UsageError: if it is another model than that of the flags.
    CheckpointError: if it cannot be read, or holds NaN or Inf.
    FolderError: if it is a Hugging Face folder that cannot be read.
  """
  found = adapter.open_model(config.restore)
  params, buffers, print_ = _put(config, mesh, found, like)
  source = os.path.abspath(config.restore)
  return params, buffers, adapter.Base(source=source, fingerprint=print_)


def again(
  config: config_lib.Config, mesh: jax.sharding.Mesh, base: adapter.Base
) -> tuple[Any, adapter.Base]:
  """The base of a run that goes on: from `--restore`, where it may have moved.

  Returns:
    Parameters on the mesh, and the base with the place where it is now.

  Raises:
    CheckpointError: if it is not there, or has other values than before.
  """
  found = adapter.open_base(base, config.restore)
  params, _, print_ = _put(config, mesh, found)
  adapter.check(base, found.path, print_)
  source = os.path.abspath(config.restore or base.source)
  return params, adapter.Base(source=source, fingerprint=print_)


def dtype_of(config: config_lib.Config, name: str, stored: np.dtype) -> Any:
  """The type in which a frozen array stays on the devices.

  Layers multiply the matrices of attention and experts in the compute type, so
  these lose nothing in it; what is stored in half precision stays so. All else
  is float32.

  Args:
    config: of the run.
    name: 'params/PATH'.
    stored: its type in the base.
  """
  part, _, path = name.partition('/')
  wanted = np.dtype(np.float32)
  if part == 'params' and path in _MULTIPLIED:
    wanted = np.dtype(layers.compute_dtype(config.model))
  half = part == 'params' and path in ('embed', 'head')
  return stored if half and stored.itemsize < wanted.itemsize else wanted


_MULTIPLIED = frozenset(
  f'layers/{name}' for names in shapes.ADAPTED.values() for name in names
)


def _put(config, mesh, found, like=None):
  """Reads a base onto the mesh: parameters, buffers, fingerprint."""
  kinds = {name: leaf.dtype for name, leaf in found.leaves.items()}
  _check_shapes(config, found)
  trees, print_ = adapter.read(
    found, lambda name: dtype_of(config, name, kinds[name])
  )
  with jax.set_mesh(mesh):
    specs = partition.part_specs(trees['params'])
  put = lambda a, spec: jax.device_put(
    a, jax.sharding.NamedSharding(mesh, spec)
  )
  params = jax.tree.map(put, trees['params'], specs)
  buffers = trees['buffers']
  if like is not None:
    buffers = jax.tree.map(
      lambda a, b: jax.device_put(a.astype(b.dtype), b.sharding), buffers, like
    )
  with jax.set_mesh(mesh):
    arrays.check_finite(found.path, {'params': params})
  return params, buffers, print_


def _check_shapes(config, found) -> None:
  """Refuses a base whose arrays are not those of the run's model."""
  wanted = shapes.parameters(config.model)
  there = {
    name.partition('/')[2]: leaf.shape
    for name, leaf in found.leaves.items()
    if name.startswith('params/')
  }
  if wrong := sorted(n for n in wanted if there.get(n) != wanted[n]):
    raise config_lib.UsageError(
      f'{found.path} is another model than that of the flags: {wrong[0]} is '
      f'{there.get(wrong[0])} there and {wanted[wrong[0]]} here; leave out '
      '--model.*, and they are taken from there.'
    )
