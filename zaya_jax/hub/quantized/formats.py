# SPDX-License-Identifier: Apache-2.0
"""How tensors of few bits are stored: three public formats, each by its names.

'compressed-tensors': numbers of 4 or 8 bits in int32 words (pack-quantized), or
a byte each (naive- and float-quantized). 'fp8': float8 with a scale for each
block, as transformers' FineGrainedFP8. 'mxfp4': blocks of 32 numbers of 4 bits
with a power of two each, as of gpt-oss.
"""

import math

import numpy as np

from zaya_jax.hub.quantized import rounding, tensor
from zaya_jax.hub.tensors import errors

SETTINGS = 'quantization_config'  # A key of config.json.
PACKED, SCALE, SHAPE = '_packed', '_scale', '_shape'
WORD = 4  # Bytes.
_INVERSE, _BLOCKS, _SCALES = '_scale_inv', '_blocks', '_scales'
# Numbers of 4 bits of MXFP4, by their bits: sign, two of exponent, one more.
_E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
_FP4 = np.concatenate([_E2M1, -_E2M1])


class _Words:
  """pack-quantized: X_packed int32, X_scale, X_shape."""

  @staticmethod
  def fits(name, tensors) -> bool:
    return name.endswith(PACKED) and tensors[name].dtype == np.int32

  @staticmethod
  def take(folder, name) -> None:
    values = folder.pop(name, name)
    whole = name.removesuffix(PACKED)
    scale = folder.pop(whole + SCALE, name)
    shape = tuple(folder.pop(whole + SHAPE, name).read().tolist())
    bits = _bits(folder, name, values, shape)

    def pack(words, scale):
      stored = words.view(np.uint8)[..., : shape[-1] * bits // 8]
      if bits == 8:
        return (stored ^ 0x80).view(np.int8), scale
      return stored, scale

    share = 2 if bits == 4 else 1  # Two that share a byte share a scale.
    if not scale.shape or shape[-1] % (share * scale.shape[-1]):
      raise folder.error(name, f'has inputs ({shape[-1]}) that fit no scales')
    made = tensor.Tensor(
      name=whole, shape=shape, values=values, scale=scale, pack=pack,
      widen=lambda words, scale: rounding.unpack(*pack(words, scale)),
    )  # fmt: skip
    folder.put(made, (*shape[:-1], scale.shape[-1]))


def _bits(folder, name, values, shape) -> int:
  """Bits of a number, by the settings and by how many words there are."""
  groups = folder.settings.get('config_groups')
  schemes = groups.values() if type(groups) is dict else ()
  schemes = [s.get('weights') for s in schemes if type(s) is dict]
  schemes = [s for s in schemes if type(s) is dict]
  if any(s.get('symmetric') is False for s in schemes):
    raise folder.error(name, 'has zero points, which cannot be read')
  found = {
    bits
    for bits in (s.get('num_bits') for s in schemes)
    if bits in rounding.BITS.values()
    and values.shape == (*shape[:-1], -(-shape[-1] * bits // (8 * WORD)))
  }
  if len(found) != 1:
    raise folder.error(
      name,
      f'has shape {values.shape}, which numbers of 4 or 8 bits, as its '
      f'config_groups say, do not give a tensor of shape {shape}',
    )
  return found.pop()


class _Bytes:
  """One byte an element, int8 or float8: X and X_scale or X_scale_inv."""

  def __init__(self, suffix: str, *types: str):
    self._suffix, self._types = suffix, types

  def fits(self, name, tensors) -> bool:
    return tensors[name].dtype.name in self._types

  def take(self, folder, name) -> None:
    values = folder.pop(name, name)
    if len(values.shape) < 2:
      raise folder.error(name, f'has shape {values.shape}; it is no matrix')
    scale = folder.pop(name + self._suffix, name)
    wanted, block = _blocks(folder, values.shape, scale.shape)
    by_row = values.dtype == np.int8 and block[0] == 1
    folder.put(
      tensor.Tensor(
        name=name, shape=values.shape, values=values, scale=scale,
        widen=lambda values, scale: _by_block(values, scale, block),
        pack=(lambda values, scale: (values, scale)) if by_row else None,
      ),
      wanted,
    )  # fmt: skip


def _blocks(folder, shape, scale) -> tuple[tuple[int, ...], tuple[int, int]]:
  """The shape that scales must have, and elements that share one."""
  *lead, outputs, inputs = shape
  size = folder.settings.get('weight_block_size')
  if scale in ((), (1,)) or math.prod(scale) == math.prod(lead) != 1:
    return scale, (outputs, inputs)  # One for each matrix.
  if folder.settings['quant_method'] != 'fp8':
    return (*lead, outputs, 1), (1, inputs)
  if not (
    isinstance(size, list)
    and len(size) == 2
    and all(type(n) is int and n > 0 for n in size)
  ):
    raise errors.FolderError(
      f'{folder.file}: weight_block_size of {SETTINGS} is {size!r}; it must be '
      'two whole numbers, as [128, 128].'
    )
  counts = (-(-outputs // size[0]), -(-inputs // size[1]))
  return (*lead, *counts), tuple(size)


def _by_block(values, scale, block) -> np.ndarray:
  """Each element times the scale of its block, float32."""
  *lead, outputs, inputs = values.shape
  wide = scale.astype(np.float32)
  if wide.ndim < values.ndim or wide.shape[-2:] == (1, 1):
    per = wide.reshape(*(lead if wide.size > 1 else ()), 1, 1)
    return values.astype(np.float32) * per
  wide = wide.repeat(block[0], axis=-2)[..., :outputs, :]
  wide = wide.repeat(block[1], axis=-1)[..., :inputs]
  return values.astype(np.float32) * wide


class _Mx:
  """mxfp4: X_blocks [..., D / 32, 16] and X_scales [..., D / 32] uint8."""

  @staticmethod
  def fits(name, tensors) -> bool:
    return name.endswith(_BLOCKS) and tensors[name].dtype == np.uint8

  @staticmethod
  def take(folder, name) -> None:
    values = folder.pop(name, name)
    whole = name.removesuffix(_BLOCKS)
    scale = folder.pop(whole + _SCALES, name)
    if values.shape[-1:] != (16,) or scale.dtype != np.uint8:
      raise folder.error(name, 'is not of blocks of 16 bytes with a byte each')
    *lead, blocks, half = values.shape
    folder.put(
      tensor.Tensor(
        name=whole, shape=(*lead, blocks * 2 * half), values=values,
        scale=scale, widen=_of_blocks,
      ),
      values.shape[:-1],
    )  # fmt: skip


def _of_blocks(values, scale) -> np.ndarray:
  """[..., D]: number * 2^(scale - 127); the lower half of a byte is first."""
  numbers = _FP4[np.stack([values & 15, values >> 4], axis=-1)]
  *lead, blocks, half, two = numbers.shape
  exponent = scale.astype(np.int32)[..., None] - 127
  wide = np.ldexp(numbers.reshape(*lead, blocks, half * two), exponent)
  return wide.reshape(*lead, -1).astype(np.float32)


METHODS = {
  'compressed-tensors': (_Words, _Bytes(SCALE, 'int8', 'float8_e4m3fn')),
  'fp8': (_Bytes(_INVERSE, 'float8_e4m3fn'),),
  'mxfp4': (_Mx,),
}
