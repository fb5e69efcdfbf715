# SPDX-License-Identifier: Apache-2.0
"""What decided which windows were given out: the stretches before a row."""

import dataclasses
from collections.abc import Sequence
from fractions import Fraction

from pipelines import order


def shares(weights: Sequence[Fraction]) -> tuple[Fraction, ...]:
  """Weights that sum to 1: 3 and 1 mean the same as 0.75 and 0.25."""
  whole = sum(weights)
  return tuple(Fraction(weight) / whole for weight in weights)


def before(stretches: Sequence[order.Stretch], row: int) -> list[order.Stretch]:
  """The stretches that have a row before this one, cut there; with `shares`."""
  found = []
  for stretch in stretches:
    if row <= 0:
      break
    size = row if stretch.rows is None else min(row, stretch.rows)
    row -= size
    found.append(
      dataclasses.replace(stretch, rows=size, weights=shares(stretch.weights))
    )
  return found
