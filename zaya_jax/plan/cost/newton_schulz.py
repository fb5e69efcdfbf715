# SPDX-License-Identifier: Apache-2.0
"""The cost of orthogonalizing every matrix of Muon.

For a matrix of m rows and n >= m columns an iteration takes the Gram matrix
(2 m^2 n), its square (2 m^3) and a product with the matrix (2 m^2 n).
"""

import dataclasses
import math
from collections.abc import Sequence

from zaya_jax import config as config_lib
from zaya_jax.plan.cost import division


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stack:
  """Matrices of one shape that the same devices share, as `optim.muon` does.

  Attributes:
    m: rows, at most n.
    n: columns.
    count: in all of the model.
    local: those that one group of devices shares.
    axes: of the mesh, along which the group lies.
    devices: of the group.
    whole: whether each device has all of them, and so must only get results.
  """

  m: int
  n: int
  count: int
  local: int
  axes: tuple[str, ...]
  devices: int
  whole: bool

  @property
  def each(self) -> int:
    """Matrices of one device; some have none but padding."""
    return -(-self.local // self.devices)

  @property
  def sent(self) -> int:
    """Elements of the stack with its padding, as a device meets them once."""
    held = self.each * self.m * self.n
    return held * self.devices if self.whole else held


def stacks(
  config: config_lib.Config, layout: division.Layout, leaves: Sequence
) -> list[Stack]:
  """Muon's matrices, stacked; `leaves` are those of `division.leaves`."""
  counts = {}
  for leaf in leaves:
    if not leaf.muon:
      continue
    rows, columns = leaf.shape[-2:]
    halves = config.optim.muon_split_gate_up and leaf.name.endswith('gate_up')
    columns, halves = (columns // 2, 2) if halves else (columns, 1)
    count = halves * math.prod(leaf.shape[:-2])
    owners, axes, side = leaf.parts, leaf.copied, None
    if leaf.dim in range(len(leaf.shape))[-2:]:
      apart = {'expert'} & {*leaf.held}  # Whole experts, not a cut.
      owners = layout.size(tuple(apart))
      axes = tuple(a for a in (*leaf.held, *leaf.cut) if a not in apart)
      side = leaf.dim - len(leaf.shape)
      side = -3 - side if rows < columns else side  # Wide ones are turned.
    key = min(rows, columns), max(rows, columns), axes, side
    known = counts.setdefault(key, [0, 0])
    counts[key] = [known[0] + count, known[1] + count // owners]
  return [
    Stack(
      m=m, n=n, count=count, local=local, axes=axes,
      devices=layout.size(axes), whole=side is None,
    )
    for (m, n, axes, side), (count, local) in counts.items()
  ]  # fmt: skip


def flops(
  found: Sequence[Stack], steps: int, *, symmetric: bool = False
) -> float:
  """Of all matrices; `symmetric` computes half of each symmetric product."""
  return sum(s.count * one(s.m, s.n, steps, symmetric) for s in found)


def busiest(found: Sequence[Stack], steps: int) -> float:
  """FLOPs of the device that gets most: whole matrices, stacked by shape."""
  return sum(s.each * one(s.m, s.n, steps, False) for s in found)


def workspace(found: Sequence[Stack], width: int) -> float:
  """Bytes of one device at the largest stack: X, the next X, A, bA + cA^2."""
  return max(
    (s.each * 2 * width * (s.m * s.n + s.m * s.m) for s in found), default=0
  )


def one(m: int, n: int, steps: int, symmetric: bool) -> float:
  """FLOPs of one matrix of m x n."""
  both = 2.0 * m * m * n + 2.0 * m**3  # Their results are symmetric.
  return steps * (both / (2 if symmetric else 1) + 2.0 * m * m * n)
