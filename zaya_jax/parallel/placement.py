# SPDX-License-Identifier: Apache-2.0
"""Which mesh axes divide which dimension of each parameter: arithmetic, no jax.

Two rules say it, of a parameter's path, its whole shape and the sizes of the
mesh's axes. Everything that places, sums, gathers or counts follows them.

- A parameter is whole on every device, but for two axes: `expert` divides the
  experts of each layer, `fsdp` one dimension of each matrix.
- Its optimizer state, and the sum of its gradient, are divided among all the
  devices that hold the same (ZeRO-1; Rajbhandari et al., 2020).

The factors of an adapter are small, and so are the numbers and scales of a
matrix that is packed: but for `expert` nothing divides them.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

# Of the mesh, outermost first: those that communicate most come last, so that
# their devices share a node.
AXES = ('replica', 'fsdp', 'expert', 'context')
ROWS = AXES[:3]  # Divide the rows of a batch; context divides each row.
# fsdp first: a part lies within what its device holds of the parameter.
_PARTS = ('fsdp', 'replica', 'expert', 'context')
# A stack of layers beyond this is summed or gathered one layer at a time: what
# a device sends must be contiguous, and a copy of one layer is smaller.
STACK_BYTES = 2**28
# The two factors that are trained beside a matrix: X @ A @ B.
FACTORS = ('lora_a', 'lora_b')
# What a matrix of few bits consists of: fields of `ops.experts.packed.Packed`.
PACKED = ('values', 'scale')


def param_dims(
  name: str, shape: tuple[int, ...], sizes: Mapping[str, int]
) -> list[Any]:
  """The axis that divides each dimension of a parameter; None: none.

  Args:
    name: its path, as 'layers/experts/down'.
    shape: whole; of what is under 'layers', the first dimension counts layers.
    sizes: of the axes of the mesh.
  """
  dims: list[Any] = [None] * len(shape)
  if name.startswith('layers/experts/') and sizes.get('expert', 1) > 1:
    dims[1] = 'expert'
  fsdp = 1 if is_whole(name) else sizes.get('fsdp', 1)
  if fsdp > 1 and len(shape) - _first(name) >= 2:
    for dim in _last_two(shape):
      if shape[dim] % fsdp == 0:
        dims[dim] = 'fsdp'
        break
  return dims


def part_dims(
  name: str, shape: tuple[int, ...], sizes: Mapping[str, int]
) -> list[Any]:
  """The same of its optimizer state and its summed gradient.

  The dimension that is divided is the one that fsdp divides, else the rows or
  the columns of a matrix, else any but that of the layers. Axes that it cannot
  be divided by hold copies. Several axes of a dimension are a tuple.
  """
  dims = param_dims(name, shape, sizes)
  if is_whole(name):
    return dims
  taken = {'expert'} if 'expert' in dims else set()
  axes = [a for a in _PARTS if sizes.get(a, 1) > 1 and a not in taken]
  order = [*_last_two(shape), *range(len(shape))]
  order = [d for d in order if d >= _first(name) and dims[d] != 'expert']
  if 'fsdp' in dims:
    order = [dims.index('fsdp')]
  for count in range(len(axes), 0, -1):
    devices = math.prod(sizes[a] for a in axes[:count])
    for dim in order:
      if shape[dim] and shape[dim] % devices == 0:
        dims[dim] = tuple(axes[:count]) if count > 1 else axes[0]
        return dims
  return dims


def is_of_layer(name: str, shape: tuple[int, ...]) -> bool:
  """Whether a parameter is a stack of matrices, which each layer gathers."""
  return name.startswith('layers/') and len(shape) > 2


def axes_of(spec: Iterable[Any]) -> set[str]:
  """The mesh axes that dimensions, or a PartitionSpec, name."""
  named = [(d,) if isinstance(d, str) else d or () for d in spec]
  return {axis for axes in named for axis in axes}


def exchange_rows(tokens: int, n: int) -> int:
  """Rows for each of n peers in one round of `expert_exchange`.

  Twice an even share, as it divides the tokens of a device; else all of them.
  """
  parts = max(1, n // 2)
  return tokens // parts if tokens % parts == 0 else tokens


def is_factor(name: str) -> bool:
  """Whether a path is that of a factor of an adapter."""
  return name.rpartition('/')[2] in FACTORS


def is_whole(name: str) -> bool:
  """Whether each device has all of it, but for experts of others."""
  return is_factor(name) or name.rpartition('/')[2] in PACKED


def _first(name):
  return int(name.startswith('layers/'))


def _last_two(shape):
  return range(len(shape))[-2:]
