# SPDX-License-Identifier: Apache-2.0
"""Times tiles of our products' kernels on the device at hand, a line each.

    python -m benchmarks.tune_products experts [--shape=16384x16x2048x2048]
    python -m benchmarks.tune_products newton_schulz [--shape=16x2048x4096]

Each kernel is timed alone. The fastest tiles belong into
`ops.triton.tiles.TABLE`. A tile that the device cannot hold is a line with the
reason.
"""

import argparse
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import tune
from ops.experts import cases
from ops.experts.triton import products
from ops.newton_schulz import triton as newton_schulz
from ops.triton import tiles
from ops.triton.tiles import Tile

# On sm_90 none of these spills in a loop (Triton 3.6, ptxas 13.0), on gfx942
# those that fit an MI300X nowhere; 256 x 256 does on both.
LARGE = (
  Tile(128, 256, 64, 8, 3),
  Tile(128, 256, 64, 8, 4),
  Tile(128, 256, 32, 8, 4),
  Tile(256, 128, 64, 8, 3),
  Tile(128, 128, 64, 8, 3),  # Two programs share an H200's processor.
  Tile(128, 128, 64, 4, 3),
  Tile(128, 128, 64, 8, 2),  # From here on an MI300X has room.
  Tile(128, 128, 32, 4, 2),
  Tile(256, 128, 64, 8, 2),
)
SETTINGS: dict[str, tuple[Tile, ...]] = {
  'symmetric': LARGE,
  'experts_up': (  # Its n counts twice.
    Tile(128, 128, 64, 8, 3),
    Tile(128, 128, 64, 8, 4),
    Tile(128, 128, 32, 8, 5),
    Tile(256, 64, 64, 8, 3),
    Tile(64, 128, 64, 8, 3),
    Tile(128, 64, 64, 4, 3),
    Tile(128, 128, 64, 8, 2),
    Tile(128, 64, 64, 8, 2),
  ),
  'experts_down': (*LARGE, Tile(64, 256, 64, 4, 3)),
  'experts_d_up': (*LARGE, Tile(64, 256, 64, 4, 3)),
  'experts_d_x': (*LARGE, Tile(64, 256, 64, 4, 3)),
  'experts_d_weights': LARGE,
}


def tune_experts(
  shape: Sequence[int], routing: str, repeats: int
) -> Iterator[dict[str, Any]]:
  """A row for each tile of each of the five kernels; [T, E, D, F]."""
  tokens, experts, width, inner = shape
  rng = np.random.default_rng(0)
  choice = np.sort(cases.ROUTINGS[routing](rng, tokens, experts))
  starts = jnp.asarray(np.searchsorted(choice, range(experts + 1)), jnp.int32)
  places = jnp.asarray(rng.permutation(tokens), jnp.int32), starts
  x, dy, a = _drawn((tokens, width), (tokens, width), (tokens, inner))
  h, gate_up, down = _drawn(
    (tokens, 2 * inner), (experts, width, 2 * inner), (experts, inner, width)
  )
  busy = 2.0 * int(starts[-1]) * width * inner
  up = functools.partial(products.up, save=True)
  d_x = functools.partial(products.matmul, transposed=True)
  for name, run, args, flops in (
    ('experts_up', up, (x, places, gate_up), 2 * busy),
    ('experts_down', products.matmul, (a, places, down), busy),
    ('experts_d_up', products.d_up, (dy, h, places, down), busy),
    ('experts_d_x', d_x, (h, places, gate_up), 2 * busy),
    ('experts_d_weights', products.d_weights, (x, h, places), 2 * busy),
  ):
    for size in SETTINGS[name]:
      with tiles.use(**{name: size}):
        # A new function each time: jax would find the one traced before.
        timed = lambda *args, run=run: run(*args)
        yield _row(name, size, timed, args, flops, repeats)


def tune_newton_schulz(
  shape: Sequence[int], repeats: int
) -> Iterator[dict[str, Any]]:
  """A row for each tile, of X X^T and of aI + bA + cA^2; [B, N, K]."""
  batch, n, depth = shape
  x, gram = (
    (a / n**0.5).astype(jnp.float16)
    for a in _drawn((batch, n, depth), (batch, n, n))
  )
  product = newton_schulz.symmetric_matmul
  for size in SETTINGS['symmetric']:
    with tiles.use(symmetric=size):
      first = lambda x: product(x, x)
      second = lambda a: product(a, a, a, alpha=2.0, beta=-5.0, diagonal=3.0)
      flops = 2.0 * batch * n * n
      yield _row('x x^T', size, first, (x,), flops * depth, repeats)
      yield _row('polynomial', size, second, (gram,), flops * n, repeats)


def _drawn(*shapes):
  keys = jax.random.split(jax.random.key(0), len(shapes))
  draw = lambda key, shape: jax.random.normal(key, shape, jnp.bfloat16)
  return [draw(*pair) for pair in zip(keys, shapes, strict=True)]


def _row(
  name: str, size: Tile, run: Callable[..., Any], args, flops, repeats
) -> dict[str, Any]:
  """Of symmetric products, the operations of all of the result count."""
  row = {'kernel': name, **vars(size)} | tune.measure(run, args, repeats)
  if 'ms' in row:
    row['tflops'] = flops / row['ms'] / 1e9
  return row


def main() -> None:
  """See the module."""
  parser = argparse.ArgumentParser()
  parser.add_argument('op', choices=['experts', 'newton_schulz'])
  parser.add_argument('--routing', default='skewed', choices=cases.ROUTINGS)
  tune.add_flags(parser)
  flags = parser.parse_args()
  if flags.op == 'experts':
    shape = flags.shape or (16384, 16, 2048, 2048)
    rows = tune_experts(shape, flags.routing, flags.repeats)
  else:
    shape = flags.shape or (16, 2048, 4096)
    rows = tune_newton_schulz(shape, flags.repeats)
  tune.show(rows)


if __name__ == '__main__':
  main()
