# SPDX-License-Identifier: Apache-2.0
"""The device mesh, and the only place that makes a PartitionSpec.

Axes are explicit: the sharding of an array is part of its type, and a missing
decision about communication is an error while tracing. Outside of a mesh (a
notebook that calls the model) every helper here does the plain thing.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from zaya_jax import config as config_lib

# Logical axis of an array -> mesh axes. What is not named here is replicated.
_RULES = {
  'batch': ('replica',),
  'cache': ('context',),
  'matrices': ('replica',),  # Of a stack: Muon treats each alone.
  'part': ('replica',),  # Of a parameter's optimizer state (ZeRO-1).
}


def make_mesh(
  config: config_lib.MeshConfig, devices: Sequence[jax.Device] | None = None
) -> jax.sharding.Mesh:
  """The mesh of a run.

  Args:
    config: sizes of the axes; a replica of 0 takes all devices.
    devices: the devices to use; None: all.

  Raises:
    UsageError: if there are fewer devices than the mesh needs.
  """
  if config.context > 1:
    raise config_lib.UsageError(
      f'--mesh.context={config.context} divides the cache of decoding '
      '(--mode=generate); leave it at 1 here.'
    )
  devices = list(jax.devices() if devices is None else devices)
  replica = config.replica or len(devices)
  if replica > len(devices):
    raise config_lib.UsageError(
      f'--mesh.replica={replica} needs as many devices and there are '
      f'{len(devices)}; lower it, or set it to 0 for all of them.'
    )
  return jax.make_mesh(
    (replica,),
    ('replica',),
    axis_types=(jax.sharding.AxisType.Explicit,),
    devices=devices[:replica],
  )


def make_context_mesh(
  size: int, devices: Sequence[jax.Device] | None = None
) -> jax.sharding.Mesh:
  """The mesh of decoding, one axis 'context' over `size` devices.

  Raises:
    UsageError: if there are fewer devices.
  """
  devices = list(jax.devices() if devices is None else devices)
  if size > len(devices):
    raise config_lib.UsageError(
      f'--mesh.context={size} needs as many devices and there are '
      f'{len(devices)}; lower it.'
    )
  return jax.make_mesh(
    (size,),
    ('context',),
    axis_types=(jax.sharding.AxisType.Auto,),
    devices=devices[:size],
  )


def spec(*axes: str | None) -> P:
  """The PartitionSpec of an array with these logical axes."""
  return P(*(_RULES.get(axis) for axis in axes))


def sharding(mesh: jax.sharding.Mesh, *axes: str | None) -> NamedSharding:
  """The NamedSharding of an array with these logical axes on `mesh`."""
  return NamedSharding(mesh, spec(*axes))


def num_parts() -> int:
  """Devices of the current mesh that share optimizer states."""
  mesh = jax.sharding.get_abstract_mesh()
  return int(np.prod([mesh.shape.get(name, 1) for name in _RULES['part']]))


def reshard(x: jax.Array, *axes: str | None) -> jax.Array:
  """`x` with these logical axes; () stands for all of it on every device."""
  if jax.sharding.get_abstract_mesh().empty:
    return x
  return jax.sharding.reshard(x, spec(*axes))


def scatter(tree: Any) -> Any:
  """Each device's part of replicated arrays, of all that can be divided.

  The dimension that is divided is the larger of the last two that the number
  of devices divides, else the first that it divides.
  """
  parts = num_parts()
  if parts == 1:
    return tree

  def one(a):
    last = sorted(range(a.ndim)[-2:], key=lambda d: -a.shape[d])
    for d in (*last, *range(a.ndim)):
      if a.shape[d] and a.shape[d] % parts == 0:
        return reshard(a, *('part' if i == d else None for i in range(a.ndim)))
    return a

  return jax.tree.map(one, tree)


def gather(tree: Any) -> Any:
  """Inverse of `scatter`."""
  if num_parts() == 1:
    return tree
  return jax.tree.map(reshard, tree)


def off_mesh(tree: Any) -> Any:
  """Replicated arrays as plain ones of the first device, without a copy.

  `jax.device_put` to a device would leave the mesh in the type of the array.
  """
  return jax.tree.map(lambda a: a.addressable_data(0), tree)


def take_rows(table: jax.Array, index: jax.Array) -> jax.Array:
  """table[index] for `index` of axes (batch, length): [B, L, ...]."""
  if jax.sharding.get_abstract_mesh().empty:
    return table[index]
  replicated = [None] * (table.ndim - 1)
  return table.at[index].get(out_sharding=spec('batch', None, *replicated))


def zeros(shape: tuple[int, ...], *axes: str | None) -> jax.Array:
  """float32 zeros with these logical axes."""
  if jax.sharding.get_abstract_mesh().empty:
    return jnp.zeros(shape, jnp.float32)
  return jnp.zeros(shape, jnp.float32, out_sharding=spec(*axes))


def per_device(f: Callable[..., Any], in_axes: Any, out_axes: Any) -> Any:
  """Runs `f` on each device's share of the arguments.

  Replicated arguments are marked as differing by device, so that their
  gradients, which each device makes from its own tokens, are summed.

  Args:
    f: a function of arrays.
    in_axes: for each argument the tuple of its logical axes.
    out_axes: the same for the results, or 'sum' for one that is summed.
  """
  mesh = jax.sharding.get_abstract_mesh()
  if mesh.empty:
    return f
  names = tuple(mesh.axis_names)

  def local(*args):
    args = [
      a
      if set(names) <= _axes_of(axes)
      else jax.lax.pcast(
        a, tuple(sorted(set(names) - _axes_of(axes))), to='varying'
      )
      for a, axes in zip(args, in_axes, strict=True)
    ]
    outs = f(*args)
    flat = outs if isinstance(outs, tuple) else (outs,)
    flat = tuple(
      jax.lax.psum(o, names) if axes == 'sum' else o
      for o, axes in zip(flat, _as_list(out_axes), strict=True)
    )
    return flat if isinstance(outs, tuple) else flat[0]

  out_specs = tuple(
    P() if axes == 'sum' else spec(*axes) for axes in _as_list(out_axes)
  )
  return jax.shard_map(
    local,
    in_specs=tuple(spec(*axes) for axes in in_axes),
    out_specs=out_specs if isinstance(out_axes, list) else out_specs[0],
  )


def _as_list(out_axes):
  return out_axes if isinstance(out_axes, list) else [out_axes]


def _axes_of(axes):
  return {name for axis in axes for name in _RULES.get(axis, ())}
