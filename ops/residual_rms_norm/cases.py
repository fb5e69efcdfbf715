# SPDX-License-Identifier: Apache-2.0
"""Inputs of `ops.residual_rms_norm`."""

import math

import numpy as np

from ops import case


def _case(
  *shape: int, zaya: bool = False, blocks: int | None = None
) -> case.Case:
  """Of rows [..., D]; the branch in so many blocks of 16 rows, in any order."""

  def arguments(rng, dtype):
    draw = lambda *s: rng.standard_normal(s).astype(np.float32)
    vectors = [draw(shape[-1]) + mean for mean in (1, 0, 1, 0, 1)]
    options = {'eps': 1e-5, 'dtype': dtype}
    if blocks is None:
      rows = (draw(*shape).astype(dtype), draw(*shape))
      return (*rows, *vectors), options
    places, count = rng.permutation(16 * blocks), math.prod(shape[:-1])
    row, spare = places[:count], places[count:]
    # Of the first token none; its row is spare, and so is what is none.
    spare = np.append(spare, [row[0], 16 * blocks])
    row[0] = 16 * blocks
    return (
      *(draw(16 * blocks, shape[-1]).astype(dtype), draw(*shape), *vectors),
      draw(*shape[:-1]),
      row.reshape(shape[:-1]).astype(np.int32),
      spare.astype(np.int32),
    ), options

  count = math.prod(shape)
  return case.Case(
    name='x'.join(map(str, shape)) + ('' if blocks is None else '-taken'),
    arguments=arguments,
    gradients=tuple(range(7 if blocks is None else 8)),
    zaya=zaya,
    flops=(9.0 * count, 35.0 * count),
    # Forward: both inputs, both results. Backward: the inputs and gradients of
    # the results once more, and the gradients of both inputs.
    bytes=(12.0 * count, 30.0 * count),
  )


CASES = (
  _case(16384, 2048, zaya=True),
  _case(16384, 2048, zaya=True, blocks=1152),
  _case(2, 7, 128),
  _case(2, 20, 96, blocks=4),
  _case(5, 2048, blocks=1),
  _case(300, 64),
  _case(3, 1, 5, 96),
  _case(1, 2048),
  _case(5, 1),
)
