# SPDX-License-Identifier: Apache-2.0
"""The collectives: calls of jax, their bandwidth, and what they have to give.

Sizes and bandwidths are those of nccl-tests (doc/PERFORMANCE.md; rccl-tests has
the same): the size is that of the larger of what a device sends and receives,
the algorithm bandwidth is size over time, and the bus bandwidth is that times a
factor of the number of devices, which makes it comparable with the speed of a
link, whatever the number of devices.
"""

import dataclasses
from collections.abc import Callable

import jax
import numpy as np

from zaya_jax.bench.machine import bus, pattern


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kind:
  """A collective.

  Attributes:
    call: of a device's message, [elements], and the number of devices.
    factor: bus bandwidth over algorithm bandwidth, of the number of devices.
    terms: what each device holds afterwards, of devices and elements.
    sends: elements of a device's message, of those of the size and devices.
    in_place: whether the result takes the place of the message.
  """

  call: Callable[[jax.Array, int], jax.Array]
  factor: Callable[[int], float]
  terms: Callable[[int, int], pattern.Terms]
  sends: Callable[[int, int], int] = lambda elements, n: elements
  in_place: bool = False


def _column(values) -> np.ndarray:
  return np.asarray(values)[:, None]


def _scattered(n, elements):
  starts = _column(np.arange(n) * (elements // n))
  return pattern.terms(_column([pattern.base(n).sum()] * n), n, starts)


def _exchanged(n, elements):
  blocks = np.broadcast_to(pattern.base(n), (n, n))
  return pattern.terms(
    blocks, c=_column(np.arange(n) * (elements // n)) + 0 * blocks
  )


_ring = lambda n: [(d, (d + 1) % n) for d in range(n)]

KINDS = {
  'all-reduce': Kind(
    factor=bus.FACTORS['all-reduce'],
    call=lambda x, n: jax.lax.psum(x, 'd'),
    terms=lambda n, _: pattern.terms(_column([pattern.base(n).sum()] * n), n),
    in_place=True,
  ),
  'reduce-scatter': Kind(
    factor=bus.FACTORS['reduce-scatter'],
    call=lambda x, n: jax.lax.psum_scatter(x, 'd', tiled=True),
    terms=_scattered,
  ),
  'all-gather': Kind(
    factor=bus.FACTORS['all-gather'],
    call=lambda x, n: jax.lax.all_gather(x, 'd', tiled=True),
    terms=lambda n, _: pattern.terms(np.broadcast_to(pattern.base(n), (n, n))),
    sends=lambda elements, n: elements // n,
  ),
  'all-to-all': Kind(
    factor=bus.FACTORS['all-to-all'],
    call=lambda x, n: jax.lax.all_to_all(
      x.reshape(n, -1), 'd', 0, 0, tiled=True
    ).reshape(-1),
    terms=_exchanged,
  ),
  'broadcast': Kind(
    factor=bus.FACTORS['broadcast'],
    call=lambda x, n: jax.lax.pbroadcast(x, 'd', 0),
    terms=lambda n, _: pattern.terms(_column([pattern.base(n)[0]] * n)),
  ),
  'permute': Kind(
    factor=bus.FACTORS['permute'],
    call=lambda x, n: jax.lax.ppermute(x, 'd', _ring(n)),
    terms=lambda n, _: pattern.terms(_column(np.roll(pattern.base(n), 1))),
  ),
}
