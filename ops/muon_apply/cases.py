# SPDX-License-Identifier: Apache-2.0
"""Inputs of `ops.muon_apply`."""

import math

import numpy as np

from ops import case
from ops.muon_momentum import cases as momentum


def _case(name, shapes, *, weight_decay: float = 0.1, zaya: bool = False):
  def arguments(rng, dtype):
    draw = lambda kind: [rng.standard_normal(s).astype(kind) for s in shapes]
    options = {
      'lr': np.float32(0.02),
      'weight_decay': weight_decay,
      'scales': [0.2 * max(shape) ** 0.5 for shape in shapes],
    }
    return (draw(np.float32), draw(dtype)), options

  count = sum(map(math.prod, shapes))
  return case.Case(
    name=name,
    arguments=arguments,
    zaya=zaya,
    flops=(5.0 * count,) * 2,
    bytes=(10.0 * count,) * 2,  # Parameter in and out, direction.
  )


CASES = (
  _case('layer', momentum.LAYER, zaya=True),
  _case('small', momentum.SMALL),
  _case('no_decay', momentum.SMALL[:2], weight_decay=0.0),
  _case('none', ()),
)
