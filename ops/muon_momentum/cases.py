# SPDX-License-Identifier: Apache-2.0
"""Inputs of `ops.muon_momentum`."""

import math

import numpy as np

from ops import case

# The matrices of one layer of ZAYA1-8B.
LAYER = (
  (16, 2048, 4096),
  (16, 2048, 2048),
  (2048, 1024),
  (1024, 2048),
  *((2048, 256),) * 2,
  *((2048, 128),) * 2,
  *((256, 256),) * 2,
  (256, 17),
)
SMALL = ((3, 5, 7), (1, 1), (2, 64, 40), (129,), (2049,))


def _case(
  name,
  shapes,
  *,
  nesterov: bool = True,
  scale: float = 1.0,
  apply: bool | None = None,
  zaya: bool = False,
):
  def arguments(rng, dtype):
    draw = lambda kind: [rng.standard_normal(s).astype(kind) for s in shapes]
    options = {'decay': 0.95, 'nesterov': nesterov, 'dtype': dtype}
    options |= {'scale': scale, 'apply': apply}
    return (draw(np.float32), draw(dtype)), options

  count = sum(map(math.prod, shapes))
  return case.Case(
    name=name,
    arguments=arguments,
    zaya=zaya,
    flops=(4.0 * count,) * 2,
    bytes=(12.0 * count,) * 2,  # Momentum in and out, gradient, result.
  )


CASES = (
  _case('layer', LAYER, zaya=True),
  _case('small', SMALL, scale=0.5),
  _case('heavy_ball', SMALL[:2], nesterov=False),
  _case('refused', SMALL[:2], apply=False),
  _case('none', ()),
)
