# SPDX-License-Identifier: Apache-2.0
"""Inputs of `ops.residual_rms_norm`."""

import math

import numpy as np

from ops import case


def _case(*shape: int, zaya: bool = False) -> case.Case:
  def arguments(rng, dtype):
    draw = lambda *s: rng.standard_normal(s).astype(np.float32)
    vectors = [draw(shape[-1]) + mean for mean in (1, 0, 1, 0, 1)]
    rows = (draw(*shape).astype(dtype), draw(*shape))
    return (*rows, *vectors), {'eps': 1e-5, 'dtype': dtype}

  count = math.prod(shape)
  return case.Case(
    name='x'.join(map(str, shape)),
    arguments=arguments,
    gradients=tuple(range(7)),
    zaya=zaya,
    flops=(9.0 * count, 35.0 * count),
    # Forward: both inputs, both results. Backward: the inputs and gradients of
    # the results once more, and the gradients of both inputs.
    bytes=(12.0 * count, 30.0 * count),
  )


CASES = (
  _case(16384, 2048, zaya=True),
  _case(2, 7, 128),
  _case(300, 64),
  _case(3, 1, 5, 96),
  _case(1, 2048),
  _case(5, 1),
)
