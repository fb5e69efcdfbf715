# SPDX-License-Identifier: Apache-2.0
"""Fingerprints of arrays, on device, that do not depend on the mesh.

The bits of each element are mixed with its index in the whole array (by the
finalizer of MurmurHash3), and the results are summed modulo 2^32, twice, with
another mix in between. Sums have no order: a part of an array needs only to
know where it starts, and the sums of the parts add up to those of the whole.
One flipped bit always changes the first sum; anything else does but for one
case in 2^64.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from zaya_jax.checkpoint import arrays

_WORDS = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32, 8: jnp.uint32}


def of_part(x: jax.Array, start: Any, shape: tuple[int, ...]) -> jax.Array:
  """The sums of a part of an array; those of all parts add up to the whole's.

  Args:
    x: the part, on one device; of any dtype.
    start: [ndim] uint32, the index of its first element in the whole.
    shape: of the whole.

  Returns:
    [2] uint32.
  """
  if x.dtype == jnp.bool_:
    x = x.astype(jnp.uint8)
  index, stride = jnp.zeros(x.shape, jnp.uint32), 1
  for axis in reversed(range(x.ndim)):
    place = lax.broadcasted_iota(jnp.uint32, x.shape, axis) + start[axis]
    index += place * jnp.uint32(stride % 2**32)
    stride *= shape[axis]
  word = _WORDS[x.dtype.itemsize]
  bits = lax.bitcast_convert_type(x, word).astype(jnp.uint32)
  if bits.ndim > x.ndim:  # Two words of 8 bytes.
    bits = bits[..., 0] ^ _mix(bits[..., 1] + jnp.uint32(0x85EBCA6B))
  mixed = _mix(bits ^ _mix(index + jnp.uint32(0x9E3779B9)))
  again = _mix(mixed + jnp.uint32(0x7F4A7C15))
  return jnp.stack([jnp.sum(h, dtype=jnp.uint32) for h in (mixed, again)])


def of_tree(tree: Any) -> dict[str, jax.Array]:
  """Starts to compute the fingerprints of a tree; nothing is waited for.

  Args:
    tree: jax arrays, sharded in any way over any processes. They may be donated
      as soon as this returns.

  Returns:
    By path, [2] uint32, the same on every device; `to_json` waits for them.
  """
  named = arrays.named(tree)
  return {name: _whole(leaf) for name, leaf in named.items()}


def to_json(prints: dict[str, jax.Array]) -> dict[str, str]:
  """The fingerprints as 16 hexadecimal digits each; waits for them."""
  return {
    name: np.asarray(value.addressable_data(0)).astype('>u4').tobytes().hex()
    for name, value in prints.items()
  }


def of_host(parts: Any, shape: tuple[int, ...]) -> str:
  """The fingerprint of an array that comes part by part, as of `to_json`.

  Args:
    parts: pairs (index of the first element, NumPy array).
    shape: of the whole.
  """
  total = np.zeros(2, np.uint32)
  for start, part in parts:
    begin = np.asarray(start, np.uint32)
    total += np.asarray(_of_part(part, begin, shape))
  return total.astype('>u4').tobytes().hex()


def differences(saved: dict[str, str], found: dict[str, str]) -> list[str]:
  """The paths at which two results of `to_json` differ."""
  paths = sorted(saved.keys() | found.keys())
  return [path for path in paths if saved.get(path) != found.get(path)]


def _whole(leaf: jax.Array) -> jax.Array:
  sharding = leaf.sharding
  if isinstance(sharding, NamedSharding) and sharding.mesh.size > 1:
    return arrays.alone(_on_mesh(leaf, sharding))
  return _of_part(leaf, np.zeros(leaf.ndim, np.uint32), leaf.shape)


# Compiled once for each shape, type and sharding: a model has few.
@functools.partial(jax.jit, static_argnums=2)
def _of_part(x, start, shape):
  return of_part(x, start, shape)


@functools.partial(jax.jit, static_argnums=1)
def _on_mesh(leaf: jax.Array, sharding: NamedSharding) -> jax.Array:
  mesh, spec = sharding.mesh, sharding.spec
  used = [_axes(entry) for entry in spec]
  used += [()] * (leaf.ndim - len(used))
  divided = tuple(axis for axes in used for axis in axes)

  def local(x):
    start = []
    for size, axes in zip(x.shape, used, strict=True):
      index = lax.axis_index(axes) if axes else 0
      start.append(jnp.uint32(index) * jnp.uint32(size))
    sums = of_part(x, start, leaf.shape)
    return lax.psum(sums, divided) if divided else sums

  return jax.shard_map(
    local, mesh=mesh, in_specs=spec, out_specs=P(), check_vma=False
  )(leaf)


def _axes(entry: Any) -> tuple[str, ...]:
  if entry is None:
    return ()
  return (entry,) if isinstance(entry, str) else tuple(entry)


def _mix(h: jax.Array) -> jax.Array:
  """MurmurHash3's finalizer: a permutation of the 32-bit words."""
  h ^= h >> 16
  h *= jnp.uint32(0x85EBCA6B)
  h ^= h >> 13
  h *= jnp.uint32(0xC2B2AE35)
  return h ^ (h >> 16)
