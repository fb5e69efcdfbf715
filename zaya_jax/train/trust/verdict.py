# SPDX-License-Identifier: Apache-2.0
"""What executions of the same step, on the same and other devices, prove."""

import dataclasses
from typing import Literal

import numpy as np

# Products whose order is not fixed, and sums over devices in another order,
# differ by less; what makes a step a spike is far more.
_SAME = 1e-3


@dataclasses.dataclass(frozen=True)
class Result:
  """What one execution of a step gave.

  Attributes:
    now_2: the loss and the gradient norm.
    losses: in the shape of the mesh, each device's part of the loss.
  """

  now_2: np.ndarray
  losses: np.ndarray


def judge(
  first: Result, again: Result, moved: Result | None, axis: int
) -> tuple[Literal['data', 'once', 'always'], list[int]]:
  """The cause of a refused step, and the devices that it may lie in.

  Args:
    first: of the step.
    again: executed once more.
    moved: with the rows of device i on device i + 1 along `axis`; None: there
      is one device along all axes.
    axis: of the mesh.

  Returns:
    'data' if all gave the same, and so the data or the maths is the cause;
    'once' if a device was wrong in one of two executions, 'always' if in both;
    places of devices in the mesh, flat; none if the loss does not tell.
  """
  if _differ(first.now_2, again.now_2).any():
    return 'once', _places(_differ(first.losses, again.losses))
  if moved is None:
    return 'data', []
  # Device i is wrong for its own rows and, after the move, for those of i - 1.
  wrong = _differ(first.losses, np.roll(moved.losses, -1, axis))
  if not wrong.any() and not _differ(first.now_2, moved.now_2).any():
    return 'data', []
  after = np.roll(wrong, 1, axis)
  return 'always', _places(wrong & after) or _places(wrong | after)


def _differ(a: np.ndarray, b: np.ndarray) -> np.ndarray:
  """Where two results are not the same; NaN and Inf are."""
  a, b = (np.where(np.isfinite(x), x, np.nan) for x in (a, b))
  return ~np.isclose(a, b, rtol=_SAME, atol=0.0, equal_nan=True)


def _places(mask: np.ndarray) -> list[int]:
  return np.flatnonzero(mask).tolist()
