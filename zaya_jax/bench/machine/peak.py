# SPDX-License-Identifier: Apache-2.0
"""The most FLOP/s that a whole step can hope for: a stack of MLPs.

The measure of the report on ZAYA1's cluster ("max achievable FLOPS": a stack of
MLPs in bfloat16): nothing but large products and what lies between them,
forward and backward, with no attention, router, optimizer or collective.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from zaya_jax import config as config_lib
from zaya_jax.bench.sweep import clock, program
from zaya_jax.bench.sweep import frame as frame_lib

UNIT = 'TFLOP/s'
WORDS = '{case}'
LAYERS = 4
_WIDTHS, _TOKENS = (2048, 4096, 8192), 8192
_CPU_WIDTHS, _CPU_TOKENS = (128, 256), 256


def _widths(config: config_lib.Config) -> dict[str, int]:
  widths = _CPU_WIDTHS if jax.default_backend() == 'cpu' else _WIDTHS
  return {f'mlp {width} {config.bench.dtype}': width for width in widths}


def cases(config: config_lib.Config) -> tuple[str, ...]:
  """The widths of the stacks."""
  return tuple(_widths(config))


def flops(width: int, tokens: int) -> int:
  """Of all layers: two products of d x 4 d, forward, and twice backward."""
  return 3 * LAYERS * 2 * (2 * tokens * width * 4 * width)


def run(frame: frame_lib.Frame, config: config_lib.Config) -> None:
  """Measures each width, in --bench.dtype."""
  dtype = jnp.dtype(config.bench.dtype)
  tokens = _CPU_TOKENS if jax.default_backend() == 'cpu' else _TOKENS
  found = {k: v for k, v in _widths(config).items() if frame.wants(k)}
  frame.expect(len(found))
  for name, width in found.items():
    count = flops(width, tokens)
    one = functools.partial(_measure, width, tokens, dtype, frame.repeats)
    frame.single(name, 1, count, count, one)


def gradients(
  x: jax.Array, up: tuple[jax.Array, ...], down: tuple[jax.Array, ...]
) -> tuple[Any, ...]:
  """Gradients of the mean of the squares of what the stack gives.

  Args:
    x: [T, D] tokens.
    up: of each layer a [D, 4 D] matrix; one stack of all would be copied.
    down: [4 D, D] matrices.

  Returns:
    Those with respect to each argument.
  """

  def loss(x, up, down):
    for u, d in zip(up, down, strict=True):
      x = jax.nn.gelu(x @ u) @ d
    return jnp.mean(jnp.square(x.astype(jnp.float32)))

  return jax.grad(loss, argnums=(0, 1, 2))(x, up, down)


def _measure(width, tokens, dtype, repeats, size, expected_s) -> clock.Timed:
  del size, expected_s
  keys = jax.random.split(jax.random.key(0), 1 + 2 * LAYERS)
  make = lambda key, *shape: jax.random.normal(key, shape, dtype)
  x, wide = make(keys[0], tokens, width), 4 * width
  up = tuple(make(k, width, wide) * width**-0.5 for k in keys[1::2])
  down = tuple(make(k, wide, width) * wide**-0.5 for k in keys[2::2])
  timed, found = program.measure(gradients, (x, up, down), repeats)
  if not all(jnp.isfinite(g).all() for g in jax.tree.leaves(found)):
    raise frame_lib.WrongError(
      f'peak: gradients of MLPs of width {width} are not finite.'
    )
  return timed
