# SPDX-License-Identifier: Apache-2.0
"""Messages whose every element tells its device and its place.

Element j of the message of device d is base(d) + j % PRIME. All are whole
numbers that float32 holds, their sums over up to 13,000 devices too, so that
a right result is right to the last bit, in whatever order it is summed. A
PRIME, so that blocks of a message differ, whose sizes are powers of two.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from zaya_jax.bench.sweep import frame

PRIME = 251
_BASES = 1009

# What device d holds in block k: a[d, k] + b * ((c[d, k] + j) % PRIME).
Terms = tuple[np.ndarray, np.ndarray, np.ndarray]


def base(devices: int) -> np.ndarray:
  """What the messages of so many devices differ in: [devices] int64."""
  return np.arange(devices) % _BASES + 1


def terms(a: np.ndarray, b: int = 1, c: np.ndarray | int = 0) -> Terms:
  """Terms of [devices, blocks] arrays; what is one number is all of them."""
  c = np.broadcast_to(np.asarray(c), a.shape)
  return a, np.full(a.shape, b), c


class Pattern:
  """Makes and checks messages on the devices of a mesh with one axis.

  Args:
    mesh: of one axis, 'd'.
  """

  def __init__(self, mesh: jax.sharding.Mesh):
    self._place = NamedSharding(mesh, P('d'))
    on_each = functools.partial(
      jax.shard_map, mesh=mesh, out_specs=P('d'), check_vma=False
    )

    @functools.partial(jax.jit, static_argnums=3)
    def make(a, b, c, length):
      one = lambda a, b, c: _expected(a, b, c, length).reshape(1, -1)
      return on_each(one, in_specs=(P('d'),) * 3)(a, b, c)

    @jax.jit
    def count(found, a, b, c):
      def one(found, a, b, c):
        length = found.shape[1] // a.shape[1]
        wanted = _expected(a, b, c, length).reshape(found.shape)
        return jnp.sum(found != wanted, axis=1, dtype=jnp.int32)

      return on_each(one, in_specs=(P('d'),) * 4)(found, a, b, c)

    self._make, self._count = make, count

  def fill(self, terms: Terms, length: int) -> jax.Array:
    """[devices, blocks * length] float32, one row on each device."""
    return self._make(*map(self._put, terms), length)

  def check(self, what: str, found: jax.Array, terms: Terms) -> None:
    """Compares each element of [devices, blocks * length] float32.

    Args:
      what: has given it, for the error.
      found: one row on each device.
      terms: of what it has to be.

    Raises:
      WrongError: naming the first device of this process with wrong values.
    """
    for shard in self._count(found, *map(self._put, terms)).addressable_shards:
      if wrong := int(shard.data[0]):
        raise frame.WrongError(
          f'{what} gave {wrong:,} wrong values of {found.shape[1]:,} on '
          f'{shard.device} of process {shard.device.process_index}; a device '
          'or a link is bad, take the node out.'
        )

  def _put(self, values: np.ndarray) -> jax.Array:
    values = values.astype(np.int32)
    return jax.make_array_from_callback(
      values.shape, self._place, lambda index: values[index]
    )


def _expected(a, b, c, length):
  place = jnp.arange(length, dtype=jnp.int32)[None, None]
  values = a[..., None] + b[..., None] * ((c[..., None] + place) % PRIME)
  return values.astype(jnp.float32)
