# SPDX-License-Identifier: Apache-2.0
"""Time of an expert layer over that of a dense one of the same active width.

  python -m benchmarks.moe_cost

The expert layer is the router with depth averaging, the permutation, the
experts and the weighting, as in a block of the model; the dense layer is one of
its experts for all tokens, in plain jnp. Routings: `balanced`, the same number
of tokens for each expert; `fresh`, as the first weights choose; `one expert`,
all tokens to the same. `backward` is the forward pass and the gradients of the
input and of all parameters. All cases of a size take turns, and the median of
each counts.
"""

import argparse
import dataclasses
import functools
import pathlib
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from benchmarks import record
from ops.router import reference
from zaya_jax import config as config_lib
from zaya_jax.model import moe, router

# (tokens, D = F); the router has D / 8, as in ZAYA1-8B.
SIZES = ((4096, 256), (8192, 512))
# The other numbers show that the time follows the tokens, not the experts.
EXPERTS = (16, 1, 2, 4, 8, 32)
ROUTINGS = ('balanced', 'fresh', 'one expert')
PASSES = ('forward', 'backward')

# (experts, routing, pass) to what runs it; no experts: the dense layer.
Cases = dict[tuple[int, str, str], Callable[[], Any]]


def main() -> None:
  """Measures, prints a table and writes benchmarks/results/moe_cost.json."""
  parser = argparse.ArgumentParser()
  parser.add_argument('--repeats', type=int, default=15)
  parser.add_argument(
    '--output', type=pathlib.Path, default=record.RESULTS / 'moe_cost.json'
  )
  args = parser.parse_args()
  about = record.circumstances('benchmarks.moe_cost', ('jax', 'jaxlib'))
  rows = []
  for tokens, width in SIZES:
    rows += measure(tokens, width, EXPERTS, args.repeats)
  print(table(rows))
  record.write(args.output, {**about, 'repeats': args.repeats, 'rows': rows})


def measure(
  tokens: int, width: int, experts: Sequence[int], repeats: int
) -> list[dict[str, Any]]:
  """Times the layers of one size.

  Args:
    tokens: T.
    width: D = F.
    experts: numbers of experts; the first is measured under every routing, the
      others balanced.
    repeats: how often each case is timed.

  Returns:
    One row per number of experts, routing and pass: milliseconds of the expert
    layer ('ms') and of the dense one ('dense_ms'), and their 'ratio'.
  """
  cases = _dense_cases(tokens, width)
  for i, number in enumerate(experts):
    cases |= _expert_cases(
      tokens, width, number, ROUTINGS if i == 0 else ROUTINGS[:1]
    )
  ms = _median_ms(cases, repeats)
  return [
    {
      'tokens': tokens,
      'width': width,
      'experts': number,
      'routing': routing,
      'pass': name,
      'ms': ms[number, routing, name],
      'dense_ms': ms[0, '', name],
      'ratio': ms[number, routing, name] / ms[0, '', name],
    }
    for number, routing, name in cases
    if number
  ]


def table(rows: Sequence[dict[str, Any]]) -> str:
  """The rows of `measure` for people."""
  lines = [
    'tokens  D = F  experts  routing     pass           ms  dense ms  ratio'
  ]
  for row in rows:
    lines.append(
      f'{row["tokens"]:6}  {row["width"]:5}  {row["experts"]:7}  '
      f'{row["routing"]:<10}  {row["pass"]:<8}  {row["ms"]:7.1f}  '
      f'{row["dense_ms"]:8.1f}  {row["ratio"]:5.2f}'
    )
  return '\n'.join(lines)


class ExpertLayer(nnx.Module):
  """The second half of a block, between its norm and its residual merge."""

  def __init__(self, config: config_lib.ModelConfig):
    rngs = nnx.Rngs(0)
    self.skip = config.skip
    self.router = router.Router(config, rngs)
    self.experts = moe.Experts(config, rngs)

  def __call__(
    self, h_BLD: jax.Array, state_BLR: jax.Array, forced_BL: jax.Array
  ) -> jax.Array:
    """[B, L, D]; tokens with a negative `forced` go where the router says."""
    routes = self.router(h_BLD, state_BLR)
    choice_BL = jnp.where(forced_BL < 0, routes.choice, forced_BL)
    routes = dataclasses.replace(
      routes, choice=choice_BL, weight=reference.pick(routes.probs, choice_BL)
    )
    y_BLD = self.experts(h_BLD, choice_BL)
    return moe.weigh(y_BLD, h_BLD, routes, self.skip)


def dense_layer(params: dict[str, jax.Array], h_BLD: jax.Array) -> jax.Array:
  """One SwiGLU network for all tokens, [B, L, D]."""
  gate, up = jnp.split(h_BLD @ params['gate_up'], 2, axis=-1)
  return (jax.nn.silu(gate) * up) @ params['down']


def force(routing: str, tokens: int, experts: int) -> jax.Array:
  """[1, T] int32, the expert of each token; -1 leaves it to the router."""
  if routing == 'fresh':
    return jnp.full((1, tokens), -1, jnp.int32)
  if routing == 'one expert':
    return jnp.zeros((1, tokens), jnp.int32)
  order = np.random.default_rng(0).permutation(tokens)
  return jnp.asarray(order[None] % experts, jnp.int32)


def _dense_cases(tokens: int, width: int) -> Cases:
  keys = jax.random.split(jax.random.key(0), 3)
  params = {
    'gate_up': 0.02 * jax.random.normal(keys[0], (width, 2 * width)),
    'down': 0.02 * jax.random.normal(keys[1], (width, width)),
  }
  h_BLD = jax.random.normal(keys[2], (1, tokens, width))
  return _passes((0, ''), dense_layer, params, h_BLD)


def _expert_cases(
  tokens: int, width: int, experts: int, routings: Sequence[str]
) -> Cases:
  config = config_lib.ModelConfig(
    d_model=width,
    d_expert=width,
    d_router=max(width // 8, 1),
    num_experts=experts,
    dtype='float32',
  )
  graph, params, buffers = nnx.split(ExpertLayer(config), nnx.Param, ...)

  def layer(params, h_BLD, state_BLR, forced_BL):
    return nnx.merge(graph, params, buffers)(h_BLD, state_BLR, forced_BL)

  keys = jax.random.split(jax.random.key(0))
  h_BLD = jax.random.normal(keys[0], (1, tokens, width))
  state_BLR = jax.random.normal(keys[1], (1, tokens, config.d_router))
  cases = {}
  for routing in routings:
    forced_BL = force(routing, tokens, experts)
    cases |= _passes(
      (experts, routing), layer, params, h_BLD, state_BLR, forced_BL
    )
  return cases


def _passes(
  key: tuple[int, str], layer: Callable[..., jax.Array], params, h_BLD, *rest
) -> Cases:
  """Both passes of one layer, compiled."""

  def backward(params, h_BLD, *rest):
    y_BLD, vjp = jax.vjp(lambda p, h: layer(p, h, *rest), params, h_BLD)
    return y_BLD, vjp(h_BLD)  # Any [B, L, D] does for the gradient of y.

  args = (params, h_BLD, *rest)
  return {
    (*key, name): functools.partial(jax.jit(f).lower(*args).compile(), *args)
    for name, f in zip(PASSES, (layer, backward), strict=True)
  }


def _median_ms(cases: Cases, repeats: int) -> dict[tuple[int, str, str], float]:
  seconds = {key: [] for key in cases}
  for i in range(repeats + 1):
    for key, run in cases.items():
      start = time.perf_counter()
      jax.block_until_ready(run())
      if i:  # The first one warms up.
        seconds[key].append(time.perf_counter() - start)
  return {k: 1000 * statistics.median(s) for k, s in seconds.items()}


if __name__ == '__main__':
  main()
