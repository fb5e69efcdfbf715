# SPDX-License-Identifier: Apache-2.0
"""Tile sizes of products in Triton, for each platform in one table.

They are what a search on the machine would change: `use` tries others.
"""

import contextlib
import dataclasses
from collections.abc import Iterator

import jax.numpy as jnp

from ops import dispatch


@dataclasses.dataclass(frozen=True)
class Tile:
  """The part of a product that one program computes; powers of two from 16.

  Attributes:
    m: rows of the result.
    n: columns.
    k: of the sum, in one turn of the loop.
    warps: of the program.
    stages: turns in flight.
  """

  m: int
  n: int
  k: int
  warps: int
  stages: int

  def fit(self, m: int, n: int, k: int) -> 'Tile':
    """No larger than a product of these sizes needs."""
    cut = lambda tile, size: min(tile, max(16, 1 << (size - 1).bit_length()))
    return dataclasses.replace(
      self, m=cut(self.m, m), n=cut(self.n, n), k=cut(self.k, k)
    )


# Kernel -> tile, for 16-bit inputs. On an H200 227 KiB of shared memory hold
# `stages` of both inputs, registers the sums; wide tiles feed its matrix units
# best. On an MI300X 64 KiB hold one stage less than is named. A CPU interprets:
# small tiles, so that small tests have several.
TABLE: dict[str, dict[str, Tile]] = {
  'cuda': {
    'symmetric': Tile(128, 256, 64, 8, 3),
    'experts_up': Tile(128, 128, 64, 8, 4),  # n of gate and n of up.
    'experts_down': Tile(128, 256, 32, 8, 4),
    'experts_d_up': Tile(128, 256, 64, 8, 4),
    'experts_d_x': Tile(128, 256, 64, 8, 3),
    'experts_d_weights': Tile(128, 256, 64, 8, 3),
    # Of the router m tokens and n hidden channels, by its width.
    'router_128': Tile(64, 64, 128, 4, 1),
    'router_256': Tile(128, 32, 256, 8, 1),
    'router_back_128': Tile(32, 64, 128, 4, 1),
    'router_back_256': Tile(128, 32, 256, 8, 1),
  },
  'rocm': {
    'symmetric': Tile(128, 128, 64, 8, 2),
    'experts_up': Tile(128, 128, 64, 8, 2),
    'experts_down': Tile(128, 128, 64, 8, 2),
    'experts_d_up': Tile(128, 128, 64, 8, 2),
    'experts_d_x': Tile(128, 128, 64, 8, 2),
    'experts_d_weights': Tile(128, 128, 64, 8, 2),
    'router_128': Tile(64, 16, 128, 4, 1),
    'router_256': Tile(32, 16, 256, 4, 1),
    'router_back_128': Tile(64, 16, 128, 4, 1),
    'router_back_256': Tile(32, 16, 256, 4, 1),
  },
  'cpu': {
    'symmetric': Tile(16, 32, 16, 4, 1),
    'experts_up': Tile(16, 16, 32, 4, 1),
    'experts_down': Tile(16, 32, 16, 4, 1),
    'experts_d_up': Tile(16, 16, 16, 4, 1),
    'experts_d_x': Tile(16, 32, 16, 4, 1),
    'experts_d_weights': Tile(16, 32, 16, 4, 1),
    'router_128': Tile(16, 16, 128, 4, 1),
    'router_256': Tile(16, 16, 256, 4, 1),
    'router_back_128': Tile(16, 16, 128, 4, 1),
    'router_back_256': Tile(16, 16, 256, 4, 1),
  },
}

_tried: dict[str, Tile] = {}


def tile(kernel: str, dtype: jnp.dtype) -> Tile:
  """That of the table, or a smaller one for 32 bits, where tests alone are."""
  if kernel in _tried:
    return _tried[kernel]
  found = TABLE[dispatch.platform()][kernel]
  if jnp.dtype(dtype).itemsize <= 2:
    return found
  return Tile(min(found.m, 64), min(found.n, 64), min(found.k, 32), 4, 2)


@contextlib.contextmanager
def use(**tiles: Tile) -> Iterator[None]:
  """Inside, these kernels are traced with these tiles."""
  before = dict(_tried)
  _tried.update(tiles)
  try:
    yield
  finally:
    _tried.clear()
    _tried.update(before)
