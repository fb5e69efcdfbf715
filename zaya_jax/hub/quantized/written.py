# SPDX-License-Identifier: Apache-2.0
"""Writes matrices of 8 or 4 bits as compressed-tensors stores them.

Of the public formats this one (pack-quantized) has scales of any group as plain
tensors beside the numbers, needs no calibration, and is what vLLM and SGLang
read for weights of 4 and 8 bits. It knows modules; arrays of experts, which are
no modules in transformers, have the same three tensors under their own name.
"""

import re
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from zaya_jax.hub.quantized import formats, rounding
from zaya_jax.hub.tensors import shards
from zaya_jax.model import shapes


def tensors(
  name: str, shape: tuple[int, ...], kind: str, read: Callable[[], np.ndarray]
) -> list[shards.Tensor]:
  """What is stored of one tensor.

  Args:
    name: of the tensor, as where nothing is quantized.
    shape: [..., F, D].
    kind: 'int8' or 'int4'.
    read: makes its values.
  """
  bits, word = rounding.BITS[kind], formats.WORD
  words = -(-shape[-1] * bits // (8 * word))
  group = shape[-1] if kind == 'int8' else shapes.group_of(shape[-1])
  known = _Rounded(kind, read)

  def packed() -> np.ndarray:
    stored = known.values().view(np.uint8)
    stored = stored if kind == 'int4' else stored ^ 0x80
    missing = words * word - stored.shape[-1]
    beside = [(0, 0)] * (stored.ndim - 1)
    stored = np.pad(stored, [*beside, (0, missing)])
    return np.ascontiguousarray(stored).view(np.int32)

  return [
    shards.Tensor(
      name + formats.PACKED, (*shape[:-1], words), np.dtype(np.int32), packed
    ),
    shards.Tensor(
      name + formats.SCALE,
      (*shape[:-1], shape[-1] // group),
      shapes.SCALE,
      known.scale,
    ),
    shards.Tensor(
      name + formats.SHAPE,
      (len(shape),),
      np.dtype(np.int64),
      lambda: np.array(shape, np.int64),
    ),
  ]


class _Rounded:
  """Numbers and scales of a tensor, of which only scales are kept."""

  def __init__(self, kind, read):
    self._kind, self._read, self._scale = kind, read, None

  def values(self) -> np.ndarray:
    values, self._scale = rounding.pack(self._read(), self._kind)
    return values

  def scale(self) -> np.ndarray:
    # Files have wide types first, so the numbers were asked for before.
    if self._scale is None:
      self.values()
    scale, self._scale = self._scale, None
    return scale


def settings(stored: Iterable[tuple[str, int, str]]) -> dict[str, Any]:
  """The quantization_config of a folder.

  Args:
    stored: (name, inputs, kind) of each tensor that `tensors` was given.
  """
  schemes: dict[tuple[str, int], dict[str, None]] = {}
  for name, inputs, kind in stored:
    group = 0 if kind == 'int8' else shapes.group_of(inputs)
    module = re.escape(name.removesuffix('.weight'))
    target = 're:' + re.sub(r'(?<=\.)\d+(?=\\)', r'\\d+', module)
    schemes.setdefault((kind, group), {})[target] = None
  return {
    'quant_method': 'compressed-tensors',
    'format': 'pack-quantized',
    'quantization_status': 'compressed',
    'config_groups': {
      f'group_{n}': {
        'targets': list(targets),
        'weights': {
          'num_bits': rounding.BITS[kind],
          'type': 'int',
          'symmetric': True,
          'strategy': 'group' if group else 'channel',
          'group_size': group or None,
          'dynamic': False,
        },
        'input_activations': None,
        'output_activations': None,
      }
      for n, ((kind, group), targets) in enumerate(schemes.items())
    },
    'ignore': [],
  }
