# SPDX-License-Identifier: Apache-2.0
"""Rounds matrices to 8 or 4 bits, in NumPy: the same bits on every machine.

int8: a scale for each output, the largest element / 127. int4: a scale for each
group of inputs; the element that is largest becomes -8, so the scale has its
sign, and of a few scales the one of the smallest squared error is taken. On
trained matrices that is as near as a zero point for each group, which would
cost more bytes (docs/quantization.md). Scales are rounded to bfloat16 first, so
rounding them costs nothing.

Axis letters: F outputs, D inputs, G groups of inputs.
"""

import itertools
import os
from concurrent import futures

import numpy as np

from zaya_jax.model import shapes

BITS = {'int8': 8, 'int4': 4}
OFFSET = 8  # As `ops.experts.packed` stores numbers of 4 bits.
# What the largest element of a group is divided by.
_DIVISORS = (8.0, 8.5, 9.0)
_BLOCK = 2**18  # Elements at a time: they stay in the cache.


def pack(w: np.ndarray, kind: str) -> tuple[np.ndarray, np.ndarray]:
  """Numbers and scales as `ops.experts.packed.Packed` has them.

  Args:
    w: [..., F, D], finite.
    kind: 'int8' or 'int4'.

  Returns:
    values [..., F, D] int8 or [..., F, D / 2] uint8, scale [..., F, G].
  """
  *lead, outputs, inputs = w.shape
  group = inputs if kind == 'int8' else shapes.group_of(inputs)
  count = inputs // group
  whole = w.reshape(-1, outputs, inputs)
  stored = inputs if kind == 'int8' else inputs // 2
  dtype = np.int8 if kind == 'int8' else np.uint8
  values = np.empty((*whole.shape[:2], stored), dtype)
  scale = np.empty((*whole.shape[:2], count), shapes.SCALE)

  def fill(part: tuple[int, slice]) -> None:
    groups = whole[part].astype(np.float32).reshape(-1, group)
    numbers, scales = (_round_8 if kind == 'int8' else _round_4)(groups)
    numbers = numbers.reshape(-1, inputs)
    values[part] = numbers if kind == 'int8' else join_halves(numbers)
    scale[part] = scales.reshape(-1, count)

  step = max(1, _BLOCK // inputs)
  rows = [slice(first, first + step) for first in range(0, outputs, step)]
  # NumPy lets other threads run while it computes.
  with futures.ThreadPoolExecutor(os.cpu_count()) as pool:
    for _ in pool.map(fill, itertools.product(range(len(whole)), rows)):
      pass
  shape = (*lead, outputs)
  return values.reshape(*shape, stored), scale.reshape(*shape, count)


def unpack(values: np.ndarray, scale: np.ndarray) -> np.ndarray:
  """[..., F, D] float32 of what `pack` gives."""
  numbers = split_halves(values) if values.dtype == np.uint8 else values
  *lead, inputs = numbers.shape
  groups = numbers.reshape(*lead, scale.shape[-1], -1).astype(np.float32)
  wide = groups * scale[..., None].astype(np.float32)
  return wide.reshape(*lead, inputs)


def join_halves(numbers: np.ndarray) -> np.ndarray:
  """Two numbers of -8 to 7 a byte, that of the even input in the lower half."""
  stored = (numbers + OFFSET).astype(np.uint8)
  return stored[..., 0::2] | stored[..., 1::2] << 4


def split_halves(values: np.ndarray) -> np.ndarray:
  """Inverse of `join_halves`, int8."""
  halves = np.stack([values & 15, values >> 4], axis=-1).astype(np.int8)
  return halves.reshape(*values.shape[:-1], -1) - np.int8(OFFSET)


def error(w: np.ndarray, kind: str) -> float:
  """How far a matrix is from what is kept of it, as a share of its norm."""
  wide = np.asarray(w, np.float64)
  apart = unpack(*pack(w, kind)) - wide
  return float(np.linalg.norm(apart) / (np.linalg.norm(wide) or 1.0))


def _round_8(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  scale = _scale(np.abs(rows).max(axis=1, keepdims=True) / 127)
  return np.clip(np.rint(rows / _divisor(scale)), -127, 127), scale


def _round_4(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  where = np.abs(rows).argmax(axis=1)[:, None]
  largest = np.take_along_axis(rows, where, axis=1)
  best: tuple[np.ndarray, ...] = ()
  for divisor in _DIVISORS:
    scale = _scale(largest / -divisor)
    numbers = np.clip(np.rint(rows / _divisor(scale)), -8, 7)
    apart = numbers * scale.astype(np.float32) - rows
    square = np.einsum('rc,rc->r', apart, apart)[:, None]
    found: tuple[np.ndarray, ...] = (numbers, scale, square)
    if best:
      nearer = square < best[2]
      pairs = zip(found, best, strict=True)
      found = tuple(np.where(nearer, new, old) for new, old in pairs)
    best = found
  return best[0], best[1]


def _scale(scale: np.ndarray) -> np.ndarray:
  return scale.astype(shapes.SCALE)


def _divisor(scale: np.ndarray) -> np.ndarray:
  """The scale as float32; of rows of zeros 1, which leaves them 0."""
  wide = scale.astype(np.float32)
  return np.where(wide == 0, np.float32(1), wide)
