# SPDX-License-Identifier: Apache-2.0
"""Inputs of `ops.newton_schulz`."""

from ops import case

STEPS = 5


def _case(*shape: int, zaya: bool = False) -> case.Case:
  *stack, rows, columns = shape
  small, large = sorted((rows, columns))
  count = 1
  for size in stack:
    count *= size
  # Both Gram products are symmetric: half of each.
  flops = count * STEPS * (3 * small**2 * large + small**3)
  return case.Case(
    name='x'.join(map(str, shape)),
    arguments=lambda rng, dtype: (
      (rng.standard_normal(shape).astype(dtype),),
      {'steps': STEPS, 'dtype': dtype},
    ),
    zaya=zaya,
    flops=(flops, flops),
    bytes=(4.0 * count * rows * columns,) * 2,
    # The iteration amplifies what small singular values lose to rounding.
    tolerance={'float32': 1e-4, 'bfloat16': 0.15},
  )


CASES = (
  _case(16, 4096, 2048, zaya=True),
  _case(16, 2048, 2048, zaya=True),
  _case(3, 2, 24, 40),
  _case(40, 24),
  _case(2, 33, 65),
  _case(1, 1, 7),
  _case(2, 128, 256),
)
