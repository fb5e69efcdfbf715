# SPDX-License-Identifier: Apache-2.0
"""Inputs of `ops.router`."""

import numpy as np

from ops import case

# Nothing is rounded to bfloat16 but tokens and their gradient. `down` then has
# 16 bits, and gradients have.
_TOLERANCE = {'float32': 2e-5, 'bfloat16': 4e-3}


def _case(
  batch: int,
  length: int,
  d: int,
  r: int,
  x: int,
  *,
  first: bool = False,
  zaya: bool = False,
) -> case.Case:
  def arguments(rng, dtype):
    draw = lambda *s: rng.standard_normal(s).astype(np.float32)
    matrix = lambda m, n: draw(m, n) / np.float32(m**0.5)
    previous = draw(batch, length, r)
    arrays = (
      draw(batch, length, d).astype(dtype),
      np.zeros_like(previous) if first else previous,
      *(matrix(d, r), 0.1 * draw(r), 1 + 0.3 * draw(r), 1 + 0.3 * draw(r)),
      *(2 * matrix(r, r), 0.3 * draw(r), 2 * matrix(r, r), 0.3 * draw(r)),
      *(3 * matrix(r, x), 0.1 * draw(x)),
    )
    return arrays, {'eps': 1e-5}

  tokens = batch * length
  flops = 2.0 * tokens * (d * r + 2 * r * r + r * x)
  # Tokens and both states forward; back the tokens' gradient, and once more the
  # tokens, both states and their gradients.
  moved = tokens * (2.0 * d + 8 * r)
  return case.Case(
    name=f'{batch}x{length}x{d}-{r}x{x}',
    arguments=arguments,
    gradients=tuple(range(11)),
    zaya=zaya,
    flops=(flops, 3 * flops),
    bytes=(moved, moved + tokens * (4.0 * d + 16 * r)),
    tolerance=_TOLERANCE,
  )


CASES = (
  _case(4, 4096, 2048, 256, 17, zaya=True),
  _case(16, 4096, 512, 128, 17, zaya=True),  # configs/small.flags
  _case(2, 16, 24, 32, 17),
  _case(1, 48, 40, 16, 3, first=True),
  _case(3, 16, 8, 128, 33),
  # As many tokens as a program of a kernel takes on any GPU.
  _case(2, 64, 72, 128, 17),
  _case(1, 128, 40, 64, 5),
  _case(2, 9, 20, 24, 4),
)
