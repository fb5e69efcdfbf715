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
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

from zaya_jax.checkpoint import agreement, arrays, seal

_SMALL = 2**18  # Elements on the host: XLA would compile for longer.
_HOST = 'cpu'  # The platform whose memory is the host's.
_PATIENCE_S = 600.0  # For the other processes.
_rounds = itertools.count()


# Fingerprints that are being computed: their number, the same in all processes,
# and by path the sums of the parts of this process, [..., 2] uint32 each.
Prints = tuple[int, dict[str, list[Any]]]

_WORDS = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32, 8: jnp.uint32}


def of_part(x: jax.Array, start: Any, shape: tuple[int, ...]) -> jax.Array:
  """The sums of a part of an array; those of all parts add up to the whole's.

  Args:
    x: the part, on one device; of any dtype, of 8 bytes at most.
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
  words = lax.bitcast_convert_type(x, word).astype(jnp.uint32)
  if words.ndim == x.ndim:
    words = words[..., None]
  return jnp.stack(_two_sums(words, index))


def of_tree(tree: Any) -> Prints:
  """Starts to compute the fingerprints of a tree; nothing is waited for.

  Each process computes those of its own parts, without the others. All call it,
  in the same order, and then `to_json`.

  Args:
    tree: jax arrays, sharded in any way over any processes. They may be donated
      as soon as this returns.
  """
  named = arrays.named(tree)
  sums = {name: _own(leaf) for name, leaf in named.items()}
  return next(_rounds), sums


def to_json(prints: Prints) -> dict[str, str]:
  """The fingerprints by path, 16 hexadecimal digits each; waits for all."""
  number, sums = prints
  own = {name: sum(map(_total, parts)) for name, parts in sums.items()}
  own = {name: np.broadcast_to(x, 2).tolist() for name, x in own.items()}

  def add(said):
    return {path: _hex(sum(np.array(x[path]) for x in said)) for path in own}

  return agreement.reach(f'prints/{number}', own, add, _PATIENCE_S)


def of_host(parts: Any, shape: tuple[int, ...]) -> str:
  """The fingerprint of an array that comes part by part, as of `to_json`.

  Args:
    parts: pairs (index of the first element, NumPy array).
    shape: of the whole.
  """
  total = sum(_total(_sums(part, start, shape)) for start, part in parts)
  return _hex(np.broadcast_to(total, 2))


def differences(saved: dict[str, str], found: dict[str, str]) -> list[str]:
  """The paths at which two results of `to_json` differ."""
  paths = sorted(saved.keys() | found.keys())
  return [path for path in paths if saved.get(path) != found.get(path)]


def check(directory: str, saved: dict[str, str], found: dict[str, str]) -> None:
  """Raises BrokenError if a checkpoint holds other values than were saved."""
  if bad := differences(saved, found):
    what = f'the values of {bad[0]} are not those that were saved'
    raise seal.BrokenError(directory, 'fingerprint', what)


def _own(leaf: jax.Array) -> list[Any]:
  """The sums of the parts that this process is the first to hold."""
  shards = [s for s in leaf.addressable_shards if s.replica_id == 0]
  starts = [[x.start or 0 for x in shard.index] for shard in shards]
  on_host = all(shard.device.platform == _HOST for shard in shards)
  if len(shards) < 2 or on_host:
    return [
      _sums(np.asarray(s.data) if on_host else s.data, start, leaf.shape)
      for s, start in zip(shards, starts, strict=True)
    ]
  return [_on_devices([s.data for s in shards], starts, leaf.shape)]


def _sums(part: Any, start: Any, shape: tuple[int, ...]) -> Any:
  """[2] uint32, by NumPy where the compiler would take longer."""
  if isinstance(part, np.ndarray) and part.size <= _SMALL:
    return _of_small(part, start, shape)
  return _of_part(part, np.array(start, np.uint32), shape)


# Compiled once for each shape and type: a model has few.
@functools.partial(jax.jit, static_argnums=2)
def _of_part(x, start, shape):
  return of_part(x, start, shape)


def _on_devices(parts: list[jax.Array], starts: Any, shape: Any) -> jax.Array:
  """[parts, 2]: the sums of equal parts on as many devices, by one program."""
  mesh = jax.sharding.Mesh([x.device for x in parts], ('part',))
  place = jax.sharding.NamedSharding(mesh, P('part'))
  rows, *rest = parts[0].shape
  whole = jax.make_array_from_single_device_arrays(
    (rows * len(parts), *rest), place, parts
  )
  return _of_parts(whole, tuple(map(tuple, starts)), shape, mesh)


@functools.partial(jax.jit, static_argnums=(1, 2, 3))
def _of_parts(whole, starts, shape, mesh):
  def local(x):
    own = jnp.array(starts, jnp.uint32)[lax.axis_index('part')]
    return of_part(x, own, shape)[None]

  return jax.shard_map(
    local, mesh=mesh, in_specs=P('part'), out_specs=P('part'), check_vma=False
  )(whole)


def _of_small(x: np.ndarray, start: Any, shape: tuple[int, ...]) -> np.ndarray:
  """As `of_part`."""
  index, stride = np.zeros((*x.shape, 1), np.uint32), 1
  for axis in reversed(range(x.ndim)):
    place = np.arange(x.shape[axis], dtype=np.uint64) + start[axis]
    place = (place * (stride % 2**32)).astype(np.uint32)
    index += place.reshape(-1, *(1,) * (x.ndim - axis))
    stride *= shape[axis]
  words = np.ascontiguousarray(x).reshape(-1, 1)
  words = words.view(f'u{min(x.dtype.itemsize, 4)}').astype(np.uint32)
  return np.array(_two_sums(words, index.reshape(-1)))


def _two_sums(words: Any, index: Any) -> list[Any]:
  """Both sums; `words` [..., 1 or 2] of each element, `index` in the whole."""
  bits = words[..., 0]
  if words.shape[-1] > 1:  # An element of 8 bytes.
    bits = bits ^ _mix(words[..., 1] + np.uint32(0x85EBCA6B))
  mixed = _mix(bits ^ _mix(index + np.uint32(0x9E3779B9)))
  again = _mix(mixed + np.uint32(0x7F4A7C15))
  return [h.sum(dtype=np.uint32) for h in (mixed, again)]


def _total(sums: Any) -> np.ndarray:
  """[2] uint64 of [..., 2] uint32."""
  return np.asarray(sums).reshape(-1, 2).sum(0, dtype=np.uint64)


def _hex(total: Any) -> str:
  return (np.asarray(total) % 2**32).astype('>u4').tobytes().hex()


def _mix(h: Any) -> Any:
  """MurmurHash3's finalizer: a permutation of the 32-bit words."""
  h = (h ^ (h >> np.uint32(16))) * np.uint32(0x85EBCA6B)
  h = (h ^ (h >> np.uint32(13))) * np.uint32(0xC2B2AE35)
  return h ^ (h >> np.uint32(16))
