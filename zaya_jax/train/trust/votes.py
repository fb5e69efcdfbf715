# SPDX-License-Identifier: Apache-2.0
"""Devices compare what they hold copies of; the majority names who is wrong.

Each device fingerprints its own copies, in one pass over its memory and no
message larger than 8 bytes a leaf. A bit that flips in one copy stays there,
since all copies take the same updates, so the next vote finds it. What ZeRO-1
divides has one copy, which nobody can outvote: parameters and moments are
vouched for by the seal of a checkpoint, and by ECC.
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from zaya_jax.checkpoint import arrays, fingerprint
from zaya_jax.parallel import mesh as mesh_lib
from zaya_jax.parallel import placement


@dataclasses.dataclass(frozen=True)
class Dissent:
  """Copies that differ.

  Attributes:
    devices: places in the mesh, flat, of those that are outvoted; without a
      majority, of all that hold these copies.
    leaves: paths of the arrays.
    majority: whether there is one.
  """

  devices: tuple[int, ...]
  leaves: tuple[str, ...]
  majority: bool


class Vote:
  """Votes on the leaves of a state that several devices hold.

  Args:
    mesh: of the state.
    state: of the shardings that all later ones have.

  Attributes:
    leaves: by path, the mesh axes that divide it.
  """

  def __init__(self, mesh: jax.sharding.Mesh, state: Any):
    self._mesh = mesh
    self.leaves = {}
    for name, leaf in arrays.named(state).items():
      axes = placement.axes_of(leaf.sharding.spec)
      if math.prod(mesh.shape[axis] for axis in axes) < mesh.size:
        self.leaves[name] = tuple(a for a in mesh.axis_names if a in axes)
    self._run = jax.jit(self._prints)

  def start(self, state: Any) -> jax.Array:
    """Starts to vote: [devices, leaves, 2] uint32; the state may be donated."""
    named = arrays.named(state)
    with jax.set_mesh(self._mesh):
      return arrays.alone(self._run([named[name] for name in self.leaves]))

  def count(self, prints_DN2: jax.Array) -> list[Dissent]:
    """What a vote has found, after waiting for it; nothing, if all agree."""
    words_DN = np.asarray(prints_DN2).astype(np.uint64) @ np.array(
      [2**32, 1], np.uint64
    )
    found: dict[tuple, list[str]] = {}
    for (name, axes), words_D in zip(
      self.leaves.items(), words_DN.T, strict=True
    ):
      if np.any(words_D != words_D[0]):
        for devices, majority in self._outvoted(words_D, axes):
          found.setdefault((devices, majority), []).append(name)
    return [Dissent(d, tuple(names), m) for (d, m), names in found.items()]

  def _prints(self, leaves):
    def local(leaves):
      prints = [
        fingerprint.of_part(x, np.zeros(x.ndim, np.uint32), x.shape)
        for x in leaves
      ]
      return jax.lax.all_gather(jnp.stack(prints), self._mesh.axis_names)

    specs = [leaf.sharding.spec for leaf in map(jax.typeof, leaves)]
    return mesh_lib.on_each(local, in_specs=(specs,), out_specs=P())(leaves)

  def _outvoted(self, words_D, axes):
    """Who holds another copy than most, among those that hold the same part."""
    names, sizes = self._mesh.axis_names, tuple(self._mesh.shape.values())
    order = sorted(range(len(names)), key=lambda i: names[i] not in axes)
    parts = math.prod(self._mesh.shape[axis] for axis in axes)
    rows = lambda a: a.reshape(sizes).transpose(order).reshape(parts, -1)
    for words, devices in zip(
      rows(words_D), rows(np.arange(len(words_D))), strict=True
    ):
      kinds, counts = np.unique(words, return_counts=True)
      if len(kinds) > 1:
        majority = bool(2 * counts.max() > len(words))
        wrong = (words != kinds[counts.argmax()]) | (not majority)
        yield tuple(map(int, devices[wrong])), majority
