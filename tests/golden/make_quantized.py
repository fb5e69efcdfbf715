# SPDX-License-Identifier: Apache-2.0
"""Writes tensors of few bits as other programs store and read them.

    make parity ARGS=--version   # Once: makes the environment with PyTorch.
    .venv-parity/bin/python -m pip install compressed-tensors==0.20.0
    .venv-parity/bin/python -m tests.golden.make_quantized

'ct' is packed and unpacked by compressed-tensors, 'fp8' and 'mxfp4' are widened
by transformers; nothing of ours computes any.
"""

import pathlib

import safetensors.torch
import torch
from compressed_tensors.compressors.naive_quantized import base as naive
from compressed_tensors.compressors.pack_quantized import base as pack
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from transformers.integrations import finegrained_fp8, mxfp4

FOLDER = pathlib.Path(__file__).with_name('quantized')


def of_compressed_tensors(name, weight, scale, compressor, **how):
  """What it stores of a module, and what it reads again."""
  scheme = QuantizationScheme(
    targets=['Linear'], weights=QuantizationArgs(symmetric=True, **how)
  )
  stored = compressor.compress(
    {'weight': weight, 'weight_scale': scale}, scheme
  )
  expected = compressor.decompress(dict(stored), scheme)['weight']
  return (
    {f'{name}.{key}': value for key, value in stored.items()},
    {f'{name}.weight': expected},
  )


def main():
  """Writes both files."""
  torch.manual_seed(0)
  draw = torch.randn
  stored, expected = {}, {}
  scale = draw(6, 5) / 8
  scale[2] = -scale[2]
  words = pack.PackedQuantizationCompressor
  for made in (
    of_compressed_tensors(
      'ct.four', draw(6, 40), scale, words, num_bits=4, strategy='group',
      group_size=8,
    ),
    of_compressed_tensors(
      'ct.eight', draw(6, 18), draw(6, 1).abs() / 100, words, num_bits=8,
      strategy='channel',
    ),
    of_compressed_tensors(
      'ct.bytes', draw(6, 18), draw(6, 1).abs() / 100,
      naive.NaiveQuantizationCompressor, num_bits=8, strategy='channel',
    ),
    of_compressed_tensors(
      'ct.floats', draw(6, 18), draw(6, 1).abs() / 100,
      naive.FloatQuantizationCompressor, num_bits=8, strategy='channel',
      type='float',
    ),
  ):  # fmt: skip
    stored |= made[0]
    expected |= made[1]
  # Of arrays of experts there are no modules; the words are the same.
  numbers = torch.randint(-8, 8, (3, 6, 24), dtype=torch.int8)
  scale = draw(3, 6, 2)
  stored |= {
    'ct.experts_packed': pack.pack_to_int32(numbers, 4),
    'ct.experts_scale': scale,
    'ct.experts_shape': torch.tensor(numbers.shape),
  }
  wide = numbers.float().unflatten(-1, (2, 12)) * scale[..., None]
  expected['ct.experts'] = wide.flatten(-2)
  for name, shape, blocks in (
    ('fp8.layer.weight', (10, 20), (3, 3)),
    ('fp8.experts', (2, 10, 20), (2, 3, 3)),
  ):
    narrow = draw(shape).to(torch.float8_e4m3fn)
    scale = draw(blocks).abs()
    stored |= {name: narrow, f'{name}_scale_inv': scale}
    expected[name] = finegrained_fp8._dequantize_fp8_weight(
      narrow, scale, [4, 8], torch.float32
    )
  blocks = torch.randint(0, 256, (2, 6, 3, 16), dtype=torch.uint8)
  scales = torch.randint(110, 130, (2, 6, 3), dtype=torch.uint8)
  stored |= {'mxfp4.experts_blocks': blocks, 'mxfp4.experts_scales': scales}
  # There experts are [in, out].
  wide = mxfp4.convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
  expected['mxfp4.experts'] = wide.transpose(1, 2).contiguous()
  FOLDER.mkdir(exist_ok=True)
  safetensors.torch.save_file(stored, FOLDER / 'stored.safetensors')
  safetensors.torch.save_file(expected, FOLDER / 'expected.safetensors')


if __name__ == '__main__':
  main()
