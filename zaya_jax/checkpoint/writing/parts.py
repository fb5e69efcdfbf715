# SPDX-License-Identifier: Apache-2.0
"""A state cut into one part for each process, and joined again.

Devices that hold the same divide it among them, so that all parts together are
the state once, and cutting sends nothing. Parts travel to a neighbour and back
between devices, over the network of the run: no server, no port.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, BinaryIO

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from zaya_jax.checkpoint import arrays
from zaya_jax.parallel import placement

Move = tuple[int, int]  # From one process to another, perhaps itself.


class Parts:
  """How the states of a run are cut.

  Args:
    mesh: of the run; each process has as many devices in it.
    like: arrays or ShapeDtypeStructs, with the shardings of the state.
  """

  def __init__(self, mesh: jax.sharding.Mesh, like: Any):
    self._mesh = mesh
    self._tree = jax.tree.structure(like)
    self._like = jax.tree.leaves(like)
    self._specs = [_divide(leaf, mesh.shape) for leaf in self._like]
    owners = [device.process_index for device in mesh.devices.flat]
    self._places = [
      [i for i, owner in enumerate(owners) if owner == process]
      for process in range(max(owners) + 1)
    ]
    self._cut: Callable | None = None

  @property
  def num_bytes(self) -> int:
    """Of the part of one process."""
    sizes = self._mesh.shape
    count = lambda spec: math.prod(sizes[a] for a in placement.axes_of(spec))
    pairs = zip(self._like, self._specs, strict=True)
    device = sum(leaf.nbytes // count(spec) for leaf, spec in pairs)
    return device * len(self._places[0])

  def cut(self, state: Any, moves: Sequence[Move]) -> list[list[jax.Array]]:
    """Starts to cut; the state may be donated.

    Args:
      state: like `like`.
      moves: where each part is to go too; none: nowhere.

    Returns:
      The parts, and as each process has received them; for `write`.
    """
    if self._cut is None:
      specs, all_moves = self._specs, [moves] if moves else []

      def run(leaves):
        pairs = zip(leaves, specs, strict=True)
        own = [jax.sharding.reshard(x, spec) for x, spec in pairs]
        return [own, *(self._send([own], [m]) for m in all_moves)]

      self._cut = jax.jit(run)
    with jax.set_mesh(self._mesh):
      cut = arrays.alone(self._cut(jax.tree.leaves(state)))
    for array in jax.tree.leaves(cut):
      for shard in array.addressable_shards:
        shard.data.copy_to_host_async()
    return cut

  def write(self, file: BinaryIO, part: list[jax.Array]) -> None:
    """Writes what the devices of this process hold; waits for them."""
    for array in part:
      for data in self._local(array):
        file.write(np.asarray(data).reshape(-1).view(np.uint8).data)

  def join(
    self, files: Sequence[BinaryIO | None], moves: Sequence[Sequence[Move]]
  ) -> Any:
    """A state from parts; all processes call it together.

    Args:
      files: at most one for each list of moves: the part that this process
        gives; None: it has none to give.
      moves: lists of (who gives, whose part it is); each process gives and
        takes at most once in a list, and each part is in one of them.
    """
    given = []
    for file in files:
      given.append([self._read(file, i) for i in range(len(self._like))])

    def run(given):
      joined = self._send(given, moves)
      pairs = zip(joined, self._like, strict=True)
      return [jax.sharding.reshard(x, like.sharding.spec) for x, like in pairs]

    where = [like.sharding for like in self._like]
    with jax.set_mesh(self._mesh):
      leaves = jax.jit(run, out_shardings=where)(given)
    return jax.tree.unflatten(self._tree, leaves)

  def _send(self, given, moves):
    """Each device's own part, from the devices of who gives it."""
    names = self._mesh.axis_names
    pairs = [
      [
        pair
        for source, owner in some
        for pair in zip(self._places[source], self._places[owner], strict=True)
      ]
      for some in moves
    ]

    def local(given):
      place = jax.lax.axis_index(names)
      out = given[0]
      for leaves, some in zip(given, pairs, strict=True):
        takes = np.zeros(self._mesh.size, bool)
        takes[[target for _, target in some]] = True
        mine = jnp.asarray(takes)[place]
        out = [
          jnp.where(mine, jax.lax.ppermute(x, names, some), y)
          for x, y in zip(leaves, out, strict=True)
        ]
      return out

    specs = list(self._specs)
    return jax.shard_map(
      local, in_specs=([specs] * len(given),), out_specs=specs, check_vma=False
    )(given)

  def _read(self, file, index):
    like, spec = self._like[index], self._specs[index]
    sharding = NamedSharding(self._mesh, spec)
    shape = sharding.shard_shape(like.shape)
    parts = []
    for place in self._places[jax.process_index()]:
      data = np.zeros(shape, like.dtype)
      if file is not None:
        view = data.reshape(-1).view(np.uint8)
        if file.readinto(view.data) != view.size:
          raise EOFError('it is too short')
      parts.append(jax.device_put(data, self._mesh.devices.flat[place]))
    return jax.make_array_from_single_device_arrays(like.shape, sharding, parts)

  def _local(self, array):
    found = {shard.device: shard.data for shard in array.addressable_shards}
    places = self._places[jax.process_index()]
    return [found[self._mesh.devices.flat[place]] for place in places]


def _divide(leaf, sizes) -> P:
  """Also divides it by the axes along which devices hold copies."""
  spec = [
    (d,) if isinstance(d, str) else tuple(d or ()) for d in leaf.sharding.spec
  ]
  spec += [()] * (len(leaf.shape) - len(spec))
  taken = placement.axes_of(leaf.sharding.spec)
  axes = [a for a in sizes if a not in taken and sizes[a] > 1]
  for count in range(len(axes), 0, -1):
    for dim, size in enumerate(leaf.shape):
      more = (*spec[dim], *axes[:count])
      if size and size % math.prod(sizes[a] for a in more) == 0:
        spec[dim] = more
        return P(*(d if len(d) > 1 else d[0] if d else None for d in spec))
  return leaf.sharding.spec
