# SPDX-License-Identifier: Apache-2.0
"""Matrices of few bits in NumPy float64, one number at a time."""

import itertools

import ml_dtypes
import numpy as np

# Inputs, and how many scales they have.
GROUPS = {'int8': 1, 'int8_groups': 3, 'int4': 3, 'int4_channel': 1}


def draw(seed, lead, kind, outputs=5, inputs=24):
  """Numbers and scales, as `ops.experts.packed` has them."""
  rng = np.random.default_rng(seed)
  shape = (*lead, outputs, inputs)
  if kind.startswith('int8'):
    values = rng.integers(-127, 128, shape).astype(np.int8)
  else:
    values = rng.integers(0, 256, (*shape[:-1], inputs // 2)).astype(np.uint8)
  scale = rng.normal(size=(*shape[:-1], GROUPS[kind])) / 40
  return values, scale.astype(ml_dtypes.bfloat16)


def wide(values, scale):
  """[..., F, D] float64: number * scale, from the definition."""
  *lead, outputs, stored = values.shape
  inputs = stored * (2 if values.dtype == np.uint8 else 1)
  found = np.zeros((*lead, outputs, inputs))
  group = inputs // scale.shape[-1]
  for at in itertools.product(*map(range, (*lead, outputs))):
    for d in range(inputs):
      number = int(values[at][d if stored == inputs else d // 2])
      if values.dtype == np.uint8:
        number = (number // 16 if d % 2 else number % 16) - 8
      found[at][d] = number * float(scale[at][d // group])
  return found
