# SPDX-License-Identifier: Apache-2.0
"""The device mesh, and how a function runs on each of its devices.

Axes, outermost first: `replica` copies the model, `fsdp` divides parameters,
`expert` divides experts, `context` divides the tokens of a row; the first three
divide the rows of a batch. Axes that communicate most come last, so that their
devices share a node.

Axes are explicit: the sharding of an array is part of its type. The loss and
its gradients run in one `on_each`, where every message is written out. Without
a mesh, as in a notebook that calls the model, every helper is a no-op.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from zaya_jax import config as config_lib
from zaya_jax.config import fields
from zaya_jax.parallel import placement

AXES = placement.AXES
# Logical axis of an array -> mesh axes. What is not named here is replicated.
_RULES = {
  'batch': placement.ROWS,
  'length': ('context',),
  'cache': ('context',),  # Of decoding, on a mesh of its own.
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
  devices = list(jax.devices() if devices is None else devices)
  inner = {axis: getattr(config, axis) for axis in AXES[1:]}
  product = int(np.prod(list(inner.values())))
  named = ' times '.join(
    f'--mesh.{axis}={n}' for axis, n in inner.items() if n > 1
  )
  if not config.replica and len(devices) % product:
    raise config_lib.UsageError(
      f'{named} does not divide the {len(devices)} devices; choose a product '
      f'of {fields.divisors(len(devices))}, or set --mesh.replica.'
    )
  replica = config.replica or len(devices) // product
  if replica * product > len(devices):
    raise config_lib.UsageError(
      f'--mesh.replica={replica} times {named or "--mesh.fsdp=1"} needs as '
      f'many devices and there are {len(devices)}; lower them, or set '
      '--mesh.replica=0 for all that is left.'
    )
  return jax.make_mesh(
    (replica, *inner.values()),
    AXES,
    axis_types=(jax.sharding.AxisType.Explicit,) * len(AXES),
    devices=devices[: replica * product],
  )


def make_context_mesh(size: int) -> jax.sharding.Mesh:
  """The mesh of decoding, one axis 'context' over `size` devices.

  Raises:
    UsageError: if there are fewer devices.
  """
  devices = jax.devices()
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
  apart = not mine or mine[-1] - mine[0] != size - 1
  if apart or mine[0] % size or parts % size:
    raise config_lib.UsageError(
      f'Process {jax.process_index()} holds the parts {mine} of {parts} of a '
      'batch; choose --mesh sizes that use all devices and give each process '
      'neighbouring ones.'
    )
  return mine[0] // size, parts // size


def sizes() -> Mapping[str, int]:
  """Devices along each axis of the current mesh; empty without one."""
  return jax.sharding.get_abstract_mesh().shape


def size(axis: str) -> int:
  """Devices along one axis of the current mesh; 1 without one."""
  return sizes().get(axis, 1)


def reshard(tree: Any, specs: Any) -> Any:
  """The arrays of a tree under these PartitionSpecs."""
  if jax.sharding.get_abstract_mesh().empty:
    return tree
  return jax.tree.map(jax.sharding.reshard, tree, specs)


def specs_of(tree: Any) -> Any:
  """Where the arrays of a tree are: a PartitionSpec of each."""
  return jax.tree.map(lambda a: jax.typeof(a).sharding.spec, tree)


def on_each(
  f: Callable[..., Any], in_specs: Any, out_specs: Any
) -> Callable[..., Any]:
  """`f` on each device, of its part of the arguments; it sends what it needs.

  A gradient inside of `f` is that of this device's tokens, until `f` sums it;
  so nothing that sums over devices may be differentiated. What `out_specs` says
  is replicated, `f` must make equal. (The check of jax, `check_vma`, follows
  sums but not gathers, and refuses the gradient of the error function in jax
  0.12.)

  Args:
    f: a function of arrays.
    in_specs: for each argument a PartitionSpec, or a tree of them.
    out_specs: the same for what it returns.
  """
  if jax.sharding.get_abstract_mesh().empty:
    return f
  return jax.shard_map(
    f, in_specs=in_specs, out_specs=out_specs, check_vma=False
  )


def total(tree: Any) -> Any:
  """Inside of `on_each`: the sum over all devices."""
  axes = jax.sharding.get_abstract_mesh().manual_axes
  return jax.lax.psum(tree, tuple(axes)) if axes else tree


def off_mesh(tree: Any) -> Any:
  """Arrays as plain ones of the first device, replicated ones without a copy.

  `jax.device_put` to a device would leave the mesh in the type of the array.
  """

  def one(a):
    if not a.is_fully_replicated:
      a = jax.device_put(a, sharding(a.sharding.mesh))
    return a.addressable_data(0)

  return jax.tree.map(one, tree)
