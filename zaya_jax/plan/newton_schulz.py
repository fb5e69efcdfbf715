# SPDX-License-Identifier: Apache-2.0
"""The cost of orthogonalizing every matrix of Muon.

For a matrix of m rows and n >= m columns an iteration takes the Gram matrix
(2 m^2 n), its square (2 m^3) and a product with the matrix (2 m^2 n).
"""

from collections.abc import Mapping

Matrices = Mapping[tuple[int, int], int]  # (m, n) -> how many.


def flops(matrices: Matrices, steps: int, *, symmetric: bool = False) -> float:
  """Of all matrices; `symmetric` computes half of each symmetric product."""
  return sum(
    count * _one(m, n, steps, symmetric) for (m, n), count in matrices.items()
  )


def busiest(matrices: Matrices, steps: int, devices: int) -> float:
  """FLOPs of the device that gets most: whole matrices, stacked by shape."""
  share = {shape: -(-count // devices) for shape, count in matrices.items()}
  return flops(share, steps)


def workspace(matrices: Matrices, devices: int, width: int) -> float:
  """Bytes of one device at the largest stack: X, the next X, A, bA + cA^2."""
  return max(
    (
      -(-count // devices) * 2 * width * (m * n + m * m)
      for (m, n), count in matrices.items()
    ),
    default=0,
  )


def _one(m: int, n: int, steps: int, symmetric: bool) -> float:
  both = 2.0 * m * m * n + 2.0 * m**3  # Their results are symmetric.
  return steps * (both / (2 if symmetric else 1) + 2.0 * m * m * n)
