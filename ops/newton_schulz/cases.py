# SPDX-License-Identifier: Apache-2.0
"""Inputs of `ops.newton_schulz`."""

import math

from ops import case

STEPS = 5
# The iteration amplifies what small singular values lose to rounding.
TOLERANCE = {'float32': 1e-4, 'bfloat16': 0.15}
HALF = dict.fromkeys(TOLERANCE, 2e-2)  # Whatever the type of the input.


def _case(
  *shape: int, zaya: bool = False, tolerance=None, **options
) -> case.Case:
  *stack, rows, columns = shape
  small, large = sorted((rows, columns))
  count = math.prod(stack)
  products = 3 * small**2 * large + small**3
  # All Gram products are symmetric: half of each.
  flops = count * STEPS * products
  if options.get('gram') and large >= 2 * small:
    flops = count * (6 * small**2 * large + 14 * small**3)
  return case.Case(
    name='-'.join(('x'.join(map(str, shape)), *map(str, options.values()))),
    arguments=lambda rng, dtype: (
      (rng.standard_normal(shape).astype(dtype),),
      {'steps': STEPS if zaya else 3, 'dtype': dtype, **options},
    ),
    zaya=zaya,
    flops=(flops, flops),
    bytes=(4.0 * count * rows * columns,) * 2,
    tolerance=tolerance or TOLERANCE,
  )


CASES = (
  _case(16, 4096, 2048, zaya=True),
  _case(16, 4096, 2048, zaya=True, gram=True),
  _case(16, 2048, 2048, zaya=True),
  _case(3, 2, 24, 40),
  _case(40, 24),
  _case(2, 33, 65),
  _case(300, 520),  # Several tiles of every engine.
  _case(770, 790, steps=1),  # As many blocks as `triangle` groups.
  _case(300, 620, gram=True),
  _case(1, 1, 7),
  _case(2, 128, 256),
  _case(2, 40, 96, gram=True),
  _case(70, 33, gram=True),
  _case(2, 33, 48, coefficients='you'),
  _case(2, 33, 48, coefficients='polar_express'),
  _case(2, 24, 70, dtype='float16', tolerance=HALF),
  _case(2, 24, 70, dtype='float16', gram=True, tolerance=HALF),
)
