# SPDX-License-Identifier: Apache-2.0
"""Inputs of `ops.expert_mlp`: how tokens may be divided among experts."""

import numpy as np

from ops import case

# [T, E] of a draw; E itself is the class without an expert.
ROUTINGS = {
  # As many tokens for each expert, in any order, none skipped.
  'balanced': lambda rng, t, e: rng.permutation(np.arange(t) % e),
  # Loads of a trained router: most within a factor of 2, some beyond, and 1 in
  # 20 tokens skipped.
  'skewed': lambda rng, t, e: rng.choice(
    e + 1, t, p=0.95 * _shares(rng, e) + 0.05 * (np.arange(e + 1) == e)
  ),
  'to_one': lambda _, t, e: np.full(t, e // 2),
  'skipped': lambda _, t, e: np.full(t, e),
  'to_the_ends': lambda rng, t, e: rng.choice([0, e - 1, e], t),
}


def _shares(rng, experts):
  shares = np.append(rng.lognormal(0, 0.5, experts), 0.0)
  return shares / shares.sum()


def _case(
  routing: str, t: int, e: int, d: int, f: int, *, zaya: bool = False
) -> case.Case:
  def arguments(rng, dtype):
    drawn = lambda *shape: rng.standard_normal(shape, np.float32)
    x = (drawn(t, d) * d**-0.5).astype(dtype)  # Its products are about 1.
    matrices = drawn(e, d, 2 * f).astype(dtype), drawn(e, f, d).astype(dtype)
    expert = ROUTINGS[routing](rng, t, e).astype(np.int32)
    return (x, expert, *matrices), {}

  shares = {'skewed': 0.95, 'to_the_ends': 2 / 3, 'skipped': 0}
  flops = 6 * t * shares.get(routing, 1) * d * f
  tokens, matrices = 2 * t * d, 2 * 3 * e * d * f
  value = 2 * tokens + matrices
  return case.Case(
    name=f'{routing}-{t}x{d}-{e}x{f}',
    arguments=arguments,
    gradients=(0, 2, 3),
    zaya=zaya,
    flops=(flops, 3 * flops),
    bytes=(value, value + 3 * tokens + 2 * matrices),
  )


CASES = (
  *(
    _case(routing, 16_384, 16, 2048, 2048, zaya=True)
    for routing in ('balanced', 'skewed', 'to_one', 'skipped')
  ),
  _case('balanced', 64, 4, 32, 32),
  *(
    _case(routing, 77, 4, 24, 40)
    for routing in ROUTINGS
    if routing != 'balanced'
  ),
  _case('to_the_ends', 300, 3, 48, 64),
  _case('skewed', 33, 1, 7, 5),
  _case('to_one', 1, 4, 16, 16),
)
