# SPDX-License-Identifier: Apache-2.0
"""Coefficients (a, b, c) of X <- (aI + bA + cA^2) X with A = X X^T."""

Steps = tuple[tuple[float, float, float], ...]

# Amsel et al., "The Polar Express", 2025, for singular values from 1e-3, with
# the paper's factor 1.01 against rounding in all but the last polynomial.
_POLAR_EXPRESS = (
  (8.28721201814563, -23.595886519098837, 17.300387312530933),
  (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
  (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
  (3.3184196573706015, -2.488488024314874, 0.51004894012372),
  (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
  (1.891301407787398, -1.2679958271945868, 0.37680408948524835),
  (1.8750014808534479, -1.2500016453999487, 0.3750001645474248),
  (1.875, -1.25, 0.375),
)
_SAFETY = 1.01

TABLE: dict[str, Steps] = {
  # Jordan et al., "Muon", 2024: the same in every step.
  'jordan': ((3.4445, -4.7750, 2.0315),),
  'polar_express': (
    *((a / _SAFETY, b / _SAFETY**3, c / _SAFETY**5)
      for a, b, c in _POLAR_EXPRESS[:-1]),
    _POLAR_EXPRESS[-1],
  ),
  # Jiacheng You, 2025 (x.com/YouJiacheng/status/1905861218138804534), the
  # choice of Dion and of Gram Newton-Schulz; made for five steps.
  'you': (
    (4.0848, -6.8946, 2.9270),
    (3.9505, -6.3029, 2.6377),
    (3.7418, -5.5913, 2.3037),
    (2.8769, -3.1427, 1.2046),
    (2.8366, -3.0525, 1.2012),
  ),
}  # fmt: skip


def schedule(name: str, steps: int) -> Steps:
  """The coefficients of each step; the last ones repeat.

  Raises:
    ValueError: if there is no such table.
  """
  if name not in TABLE:
    raise ValueError(
      f'newton_schulz: coefficients={name!r} must be one of {", ".join(TABLE)}.'
    )
  table = TABLE[name]
  return tuple(table[min(i, len(table) - 1)] for i in range(steps))
