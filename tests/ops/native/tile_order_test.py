# SPDX-License-Identifier: Apache-2.0
"""How long the dies of an MI300X work on the experts' tiles, simulated.

Blocks go to the dies in turn, and on a die to whichever of its compute units is
free first; which tile a block has is asked of the kernels' own code, emulated.
"""

import heapq

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ops import native
from ops.experts import hip, sorting

DIES, UNITS, GROUP = 8, 38, 4
TOKENS, EXPERTS = 16_384, 16
# Of the four products over rows: tiles of columns, work of a tile.
PRODUCTS = {'up': (16, 1.0), 'down': (8, 1.0), 'd_up': (8, 1.0), 'd_x': (8, 2)}
NOW = 'int blocks = tiles_of(rows, kGroup) * kGroup * columns;'
BEFORE = 'int blocks = gridDim.x;'  # The room of the list, not what is in it.


def counts_of(kind):
  """Tokens of each expert and, last, of those without one."""
  if kind == 'balanced':
    return np.append(np.full(EXPERTS, TOKENS // EXPERTS), 0)
  if kind == 'all to one':
    return np.eye(EXPERTS + 1, dtype=int)[3] * TOKENS
  rng = np.random.default_rng(0)
  share = rng.lognormal(0, 0.5, EXPERTS)
  share = np.append(0.95 * share / share.sum(), 0.05)
  return np.bincount(
    rng.choice(EXPERTS + 1, TOKENS, p=share), minlength=EXPERTS + 1
  )


def listed(kind):
  """The list of tiles that the kernels get, and its live ones."""
  starts = jnp.asarray(np.cumsum(counts_of(kind))[:-1], jnp.int32)
  starts = jnp.concatenate([jnp.zeros(1, jnp.int32), starts])
  *tiles, live = map(np.asarray, hip._listed(starts, TOKENS))
  return sorting.Tiles(*tiles), int(live[0])


def turns(room, rows, columns):
  """The tile of each block of a grid for `room` rows; -1: none."""
  blocks = -(-room // GROUP) * GROUP * columns
  shape = jax.ShapeDtypeStruct((blocks,), jnp.int32)
  how = {'rows': np.int32(rows), 'columns': np.int32(columns)}
  return np.asarray(native.call('turns', shape, **how))


def span(tiles, live, columns, work):
  """When the last unit is done, and when all would be if none ever waited."""
  dies = [[0.0] * UNITS for _ in range(DIES)]
  total = 0.0
  for block, turn in enumerate(turns(tiles.expert_P.size, live, columns)):
    row = turn // columns
    if turn < 0 or tiles.first_P[row] >= tiles.end_P[row]:
      continue
    full = tiles.end_P[row] - tiles.first_P[row] > 128
    took = work * (1.0 if full else 0.55)
    took = took if tiles.expert_P[row] < EXPERTS else 0.02
    total += took
    die = dies[block % DIES]
    heapq.heappush(die, heapq.heappop(die) + took)
  return max(map(max, dies)), total / (DIES * UNITS)


def rounds(kind):
  """Of all four products together: simulated, and the least."""
  tiles, live = listed(kind)
  found = [span(tiles, live, *how) for how in PRODUCTS.values()]
  return tuple(np.sum(found, axis=0))


@pytest.mark.parametrize('kind', ['balanced', 'skewed', 'all to one'])
def test_each_live_tile_has_one_block(tile_probe, kind):
  tile_probe()
  tiles, live = listed(kind)
  assert (tiles.first_P < tiles.end_P).sum() == live
  for columns, _ in PRODUCTS.values():
    found = turns(tiles.expert_P.size, live, columns)
    assert sorted(found[found >= 0]) == list(range(live * columns))


@pytest.mark.parametrize('kind', ['balanced', 'skewed', 'all to one'])
def test_the_dies_share_what_there_is(tile_probe, kind):
  tile_probe()
  now, least = rounds(kind)
  assert now <= 1.2 * least  # 12 rounds, of 10.1.
  tile_probe(('tile.h', NOW, BEFORE))
  before, _ = rounds(kind)
  assert before > now
  print(f'{kind}: {before:.2f} rounds before, {now:.2f} now, least {least:.2f}')
