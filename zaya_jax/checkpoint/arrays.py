# SPDX-License-Identifier: Apache-2.0
"""The names, shapes and types of the arrays of a tree, whatever its classes.

A leaf is named by its path, 'params/blocks/w_up'. Dataclasses, named tuples and
the dicts and lists that Orbax makes of them give the same names.
"""

from typing import Any

import jax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from zaya_jax.checkpoint import kinds


def named(tree: Any) -> dict[str, Any]:
  """The leaves of a tree by path."""
  leaves = jax.tree_util.tree_leaves_with_path(tree)
  return {
    jax.tree_util.keystr(path, simple=True, separator='/'): leaf
    for path, leaf in leaves
  }


def describe(tree: Any) -> dict[str, str]:
  """The type and shape of each leaf by path, as 'float32[4,256]'."""
  return {name: kinds.of(leaf) for name, leaf in named(tree).items()}


def num_bytes(tree: Any) -> int:
  """The bytes of all leaves, each counted once however it is sharded."""
  return sum(leaf.nbytes for leaf in jax.tree.leaves(tree))


def alone(tree: Any) -> Any:
  """The same arrays; on CPU devices, as soon as they are computed.

  For programs that send, between steps: XLA:CPU gives threads to all programs
  at once, and those of some devices wait for devices that get none.
  """
  leaf = jax.tree.leaves(tree)[0]
  if next(iter(leaf.sharding.device_set)).platform == 'cpu':
    jax.block_until_ready(tree)
  return tree


def on_mesh(abstract: Any, mesh: jax.sharding.Mesh) -> Any:
  """Places the result of `jax.eval_shape` on the devices of `mesh`.

  Args:
    abstract: ShapeDtypeStructs. Under an explicit mesh they carry a sharding
      over an abstract mesh; scalars carry none and are replicated.
    mesh: the mesh of the run.

  Returns:
    The same tree with shardings that name devices, as a restore needs.
  """

  def place(leaf):
    spec = leaf.sharding.spec if leaf.sharding else P()
    sharding = NamedSharding(mesh, spec)
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

  return jax.tree.map(place, abstract)
