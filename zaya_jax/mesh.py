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
from zaya_jax import fields

_AXES = ('replica', 'fsdp')
# Logical axis of an array -> mesh axes. What is not named here is replicated.
_RULES = {
  'batch': ('replica', 'fsdp'),
  'cache': ('context',),
  'matrices': ('replica', 'fsdp'),  # Of a stack: Muon treats each alone.
  'param': ('fsdp',),  # Of a parameter.
  'part': ('fsdp', 'replica'),  # Of a parameter's optimizer state (ZeRO-1).
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
  fsdp = config.fsdp
  if not config.replica and len(devices) % fsdp:
    raise config_lib.UsageError(
      f'--mesh.fsdp={fsdp} does not divide the {len(devices)} devices; choose '
      f'one of {fields.divisors(len(devices))}, or set --mesh.replica.'
    )
  replica = config.replica or len(devices) // fsdp
  if replica * fsdp > len(devices):
    raise config_lib.UsageError(
      f'--mesh.replica={replica} times --mesh.fsdp={fsdp} needs as many '
      f'devices and there are {len(devices)}; lower them, or set '
      '--mesh.replica=0 for all that is left.'
    )
  return jax.make_mesh(
    (replica, fsdp),
    _AXES,
    axis_types=(jax.sharding.AxisType.Explicit,) * len(_AXES),
    devices=devices[: replica * fsdp],
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


def data_shard(mesh: jax.sharding.Mesh) -> tuple[int, int]:
  """Which part of each batch this process reads, of how many: (index, count).

  Processes whose devices are copies in the data axes read the same.

  Raises:
    UsageError: if this process has no device in the mesh, or parts of the
      batch that are not neighbours.
  """
  rows = sharding(mesh, 'batch')
  parts = int(np.prod([mesh.shape.get(axis, 1) for axis in _RULES['batch']]))
  places = rows.addressable_devices_indices_map((parts,)).values()
  mine = sorted({place[0].indices(parts)[0] for place in places})
  size = len(mine)
  if not mine or mine[0] % size or mine[-1] - mine[0] != size - 1:
    raise config_lib.UsageError(
      f'Process {jax.process_index()} holds the parts {mine} of {parts} of a '
      'batch; choose --mesh sizes that use all devices and give each process '
      'neighbouring ones.'
    )
  return mine[0] // size, parts // size


def num_parts(axis: str = 'part') -> int:
  """Devices of the current mesh among which a logical axis is divided."""
  mesh = jax.sharding.get_abstract_mesh()
  return int(np.prod([mesh.shape.get(name, 1) for name in _RULES[axis]]))


def reshard(x: jax.Array, *axes: str | None) -> jax.Array:
  """`x` with these logical axes; () stands for all of it on every device."""
  if jax.sharding.get_abstract_mesh().empty:
    return x
  return jax.sharding.reshard(x, spec(*axes))


def scatter(tree: Any) -> Any:
  """Each device's part of the optimizer's arrays, of all that can be divided.

  The dimension that is divided is the larger of the last two that the number
  of devices divides, else the first that it divides.
  """

  def one(a):
    last = sorted(range(a.ndim)[-2:], key=lambda d: -a.shape[d])
    return _divide(a, 'part', (*last, *range(a.ndim)))

  return tree if num_parts() == 1 else jax.tree.map(one, tree)


def scatter_params(params: dict[str, Any]) -> dict[str, Any]:
  """Each device's part of the matrices, for FSDP; vectors stay whole.

  The layers are scanned, so their first dimension is never divided.
  """

  def one(path, a):
    if a.ndim < (3 if path[0].key == 'layers' else 2):
      return a
    last = sorted(range(a.ndim)[-2:], key=lambda d: -a.shape[d])
    return _divide(a, 'param', last)

  if num_parts('param') == 1:
    return params
  return jax.tree_util.tree_map_with_path(one, params)


def gather(tree: Any) -> Any:
  """All of each array on every device."""
  if num_parts() == 1:
    return tree
  return jax.tree.map(reshard, tree)


def reshard_like(tree: Any, other: Any) -> Any:
  """The arrays of a tree, divided as those of another."""
  if num_parts() == 1:
    return tree
  return jax.tree.map(
    lambda a, b: jax.sharding.reshard(a, jax.typeof(b).sharding.spec),
    tree,
    other,
  )


def _divide(a, axis, dims):
  for d in dims:
    if a.shape[d] and a.shape[d] % num_parts(axis) == 0:
      return reshard(a, *(axis if i == d else None for i in range(a.ndim)))
  return reshard(a)


def off_mesh(tree: Any) -> Any:
  """Arrays as plain ones of the first device, replicated ones without a copy.

  `jax.device_put` to a device would leave the mesh in the type of the array.
  """

  def one(a):
    if not a.is_fully_replicated:
      a = jax.device_put(a, sharding(a.sharding.mesh))
    return a.addressable_data(0)

  return jax.tree.map(one, tree)


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
