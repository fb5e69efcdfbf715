# SPDX-License-Identifier: Apache-2.0
"""Which matrices --quant rounds, and what is kept of each: no jax."""

import ml_dtypes
import numpy as np

from zaya_jax import config as config_lib
from zaya_jax.model import shapes

GROUP = 64  # Inputs that share a scale of int4, at most.
SCALE = np.dtype(ml_dtypes.bfloat16)
_TARGETS = {
  **{
    target: frozenset(f'layers/{name}' for name in names)
    for target, names in shapes.ADAPTED.items()
  },
  'embedding': frozenset(('embed', 'head')),
}


def kind_of(path: str, kind: str, targets: tuple[str, ...]) -> str | None:
  """The kind of a parameter, by its path; None: it stays as it is.

  The embedding has 8 bits at the least: its rows are looked up as well.

  Args:
    path: of the parameter.
    kind: of --quant.
    targets: of --quant.targets.
  """
  named = any(path in _TARGETS[target] for target in targets)
  if kind == 'none' or not named:
    return None
  return 'int8' if path in _TARGETS['embedding'] else kind


def of_run(config: config_lib.Config, path: str) -> str | None:
  """The kind of a parameter in the base of a run with --quant."""
  return kind_of(path, config.quant, config.quantization.targets)


def group_of(inputs: int) -> int:
  """Inputs that share a scale of int4: the largest even divisor up to GROUP.

  Raises:
    ValueError: if the number of inputs is odd.
  """
  found = [g for g in range(2, min(GROUP, inputs) + 1, 2) if inputs % g == 0]
  if not found:
    raise ValueError(f'{inputs} inputs are odd, and two share a byte')
  return found[-1]


def arrays(
  path: str, shape: tuple[int, ...], kind: str
) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
  """Shape and type of the arrays that a packed parameter consists of.

  Args:
    path: of the parameter; that of a layer is [..., in, out].
    shape: whole.
    kind: 'int8' or 'int4'.

  Returns:
    By the names of the fields of `ops.experts.packed.Packed`.
  """
  *lead, outputs, inputs = shape
  if path.startswith('layers/'):
    outputs, inputs = inputs, outputs
  four = kind == 'int4'
  stored = inputs // 2 if four else inputs
  groups = inputs // group_of(inputs) if four else 1
  values = np.dtype(np.uint8 if four else np.int8)
  return {
    'values': ((*lead, outputs, stored), values),
    'scale': ((*lead, outputs, groups), SCALE),
  }
