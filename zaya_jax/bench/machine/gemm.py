# SPDX-License-Identifier: Apache-2.0
"""Products of matrices: a grid of shapes, and those of the model.

M x N x K is [M, K] times [K, N], 2 M N K FLOPs. Those of the model are of the
forward pass: the tokens of a batch, at most _TOKENS of them, times the weights
of a layer; of all experts together, with as many tokens each.
"""

import functools
import itertools
from collections.abc import Mapping

import jax
import jax.numpy as jnp

from zaya_jax import config as config_lib
from zaya_jax.bench.sweep import clock, program
from zaya_jax.bench.sweep import frame as frame_lib
from zaya_jax.model import shapes

UNIT = 'TFLOP/s'
WORDS = '{case}'
_TOKENS = 2**14
_GRID = (1024, 4096, 16384)
_CPU_GRID = (128, 512)
_OF_MODEL = (
  'attn/q', 'attn/k', 'attn/out', 'router/down', 'experts/gate_up',
  'experts/down',
)  # fmt: skip
# Of the norm of a product times a vector: bfloat16 rounds to 2^-9.
_TOLERANCE = 2**-6

# Products at once, M, N, K.
Shape = tuple[int, int, int, int]


def products(config: config_lib.Config) -> Mapping[str, Shape]:
  """The shapes to measure, by name."""
  cpu, dtype = jax.default_backend() == 'cpu', config.bench.dtype
  grid = itertools.product(_CPU_GRID if cpu else _GRID, repeat=3)
  found = {f'{m}x{n}x{k} {dtype}': (1, m, n, k) for m, n, k in grid}
  known, data = shapes.parameters(config.model), config.data
  tokens = min(data.batch_size * data.seq_len, _TOKENS)
  for name in _OF_MODEL:
    *batch, k, n = known[f'layers/{name}'][1:]
    count = batch[0] if batch else 1
    m = max(1, tokens // count)
    found[f'{name} {m}x{n}x{k} {dtype}'] = (count, m, n, k)
  vocab, k = known['embed']
  found[f'head {tokens}x{vocab}x{k} {dtype}'] = (1, tokens, vocab, k)
  return found


def cases(config: config_lib.Config) -> tuple[str, ...]:
  """The names of all shapes."""
  return tuple(products(config))


def flops(shape: Shape) -> int:
  """Multiplications and additions."""
  count, m, n, k = shape
  return 2 * count * m * n * k


def run(frame: frame_lib.Frame, config: config_lib.Config) -> None:
  """Measures each shape, in --bench.dtype.

  Raises:
    WrongError: if a product is wrong.
  """
  found = {k: v for k, v in products(config).items() if frame.wants(k)}
  dtype = jnp.dtype(config.bench.dtype)
  frame.expect(len(found))
  for name, shape in found.items():
    one = functools.partial(_measure, name, shape, dtype, frame.repeats)
    frame.single(name, 1, flops(shape), flops(shape), one)


def measure(
  name: str, shape: Shape, dtype: jnp.dtype, repeats: int
) -> clock.Timed:
  """Times a product of normal numbers.

  Raises:
    WrongError: if it is wrong.
  """
  count, m, n, k = shape
  keys = jax.random.split(jax.random.key(0), 3)
  a = jax.random.normal(keys[0], (count, m, k), dtype)
  b = jax.random.normal(keys[1], (count, k, n), dtype)
  timed, found = program.measure(jnp.matmul, (a, b), repeats)
  v = jax.random.rademacher(keys[2], (count, n, 1), jnp.float32)
  if not float(_error(a, b, found, v)) <= _TOLERANCE:
    raise frame_lib.WrongError(
      f'The product {name} is wrong on {jax.devices()[0]}; the device is bad, '
      'take the node out.'
    )
  return timed


@jax.jit
def _error(a, b, found, v):
  """Of a product, by two products with vectors (Freivalds 1977)."""
  f32 = lambda x: x.astype(jnp.float32)
  wanted = f32(a) @ (f32(b) @ v)
  return jnp.linalg.norm(f32(found) @ v - wanted) / jnp.linalg.norm(wanted)


def _measure(name, shape, dtype, repeats, size, expected_s) -> clock.Timed:
  del size, expected_s
  return measure(name, shape, dtype, repeats)
