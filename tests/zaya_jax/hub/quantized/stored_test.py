# SPDX-License-Identifier: Apache-2.0
"""Folders whose experts have few bits, as other programs publish them."""

import functools
import json

import ml_dtypes
import numpy as np
import pytest

from tests.support import folders, tiny
from zaya_jax.hub import folder as hub_folder
from zaya_jax.hub import leaves
from zaya_jax.hub import names as hub_names
from zaya_jax.hub.tensors import errors, shards, weights

MODEL = tiny.config(d_model=64, d_expert=32, num_layers=2)
FP8 = {'quant_method': 'fp8', 'weight_block_size': [16, 32]}
MXFP4 = {'quant_method': 'mxfp4'}
# Multiples of a half up to 6, as MXFP4 has them, times powers of two.
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def to_fp8(name, w):
  """Numbers and scales of blocks, and what they mean."""
  *lead, rows, columns = w.shape
  blocks = w.reshape(*lead, rows // 16, 16, columns // 32, 32)
  scale = np.abs(blocks).max(axis=(-3, -1), keepdims=True) / 448
  scale = scale.astype(np.float32)
  numbers = (blocks / scale).astype(ml_dtypes.float8_e4m3fn)
  wide = (numbers.astype(np.float32) * scale).reshape(w.shape)
  scale = scale.reshape(*lead, rows // 16, columns // 32)
  return {name: numbers.reshape(w.shape), f'{name}_scale_inv': scale}, wide


def to_mxfp4(name, w):
  """The same of blocks of 32."""
  blocks = w.reshape(*w.shape[:-1], -1, 32).astype(np.float64)
  largest = np.abs(blocks).max(axis=-1)
  exponent = np.floor(np.log2(largest)).astype(int) - 2
  steps = blocks / np.exp2(exponent)[..., None]
  index = np.abs(np.abs(steps)[..., None] - E2M1).argmin(axis=-1)
  wide = np.sign(steps) * E2M1[index] * np.exp2(exponent)[..., None]
  index = (index + 8 * (steps < 0)).astype(np.uint8)
  pairs = index.reshape(*index.shape[:-1], 16, 2)
  stored = {
    f'{name}_blocks': pairs[..., 0] | pairs[..., 1] << 4,
    f'{name}_scales': (exponent + 127).astype(np.uint8),
  }
  return stored, wide.reshape(w.shape).astype(np.float32)


KINDS = {'fp8': (FP8, to_fp8), 'mxfp4': (MXFP4, to_mxfp4)}


@pytest.fixture(params=KINDS)
def published(request, tmp_path):
  """A folder of few bits, and the wide experts that it means."""
  settings, narrow = KINDS[request.param]
  values, wide = folders.tensors(MODEL, 'native'), {}
  for name in [n for n in values if '.experts.' in n]:
    w = values.pop(name).astype(np.float32)
    stored, wide[name] = narrow(name, w)
    values |= {n: np.ascontiguousarray(a) for n, a in stored.items()}
    apart = np.linalg.norm(wide[name] - w) / np.linalg.norm(w)
    assert apart < (0.04 if request.param == 'fp8' else 0.2)
  changes = {'quantization_config': settings}
  folders.write(tmp_path / 'few', 'native', values, MODEL, **changes)
  return tmp_path / 'few', wide


def test_experts_are_read_wide(published):
  folder, wide = published
  params, _ = hub_folder.read_params(str(folder), MODEL)
  found = dict(folders.export(hub_names.PARAMS, params))
  for name, array in wide.items():
    np.testing.assert_array_equal(found[name], array)
  plain = folders.tensors(MODEL, 'native')
  name = 'model.layers.1.self_attn.o_proj.weight'
  np.testing.assert_array_equal(found[name], plain[name].astype(np.float32))


def test_layers_are_read_alone(published):
  folder, wide = published
  leaf = leaves.find(str(folder)).leaves['params/layers/experts/down']
  rows = wide['model.layers.1.mlp.experts.down_proj']
  np.testing.assert_array_equal(leaf[(1,)], rows.swapaxes(-1, -2))
  assert not leaf.is_packed  # Decoding has no products with these.


def test_a_missing_scale_is_named(published):
  folder, _ = published
  file = str(folder / 'model.safetensors')
  kept = [
    shards.Tensor(
      t.name, t.shape, t.dtype, functools.partial(np.array, t.read())
    )
    for t in weights.read_header(file)
  ]
  lost = next(t for t in kept if '.1.mlp.experts.down_proj_scale' in t.name)
  kept.remove(lost)
  shards.write_file(file, kept)
  with pytest.raises(errors.FolderError, match=f'has no {lost.name}'):
    leaves.find(str(folder))


def test_settings_of_another_program_are_refused(published):
  folder, _ = published
  file = folder / 'config.json'
  given = json.loads(file.read_text())
  given['quantization_config'] = {'quant_method': 'gptq'}
  file.write_text(json.dumps(given))
  with pytest.raises(errors.FolderError, match="'gptq'; only"):
    leaves.find(str(folder))
