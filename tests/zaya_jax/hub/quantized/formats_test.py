# SPDX-License-Identifier: Apache-2.0
"""Tensors of few bits read as the programs that define the formats read them.

tests/golden/make_quantized.py wrote them with compressed-tensors and
transformers.
"""

import pathlib

import numpy as np
import pytest
import safetensors.numpy

from tests.support import close
from zaya_jax.hub.quantized import formats, rounding, stored
from zaya_jax.hub.tensors import errors, weights

GOLDEN = pathlib.Path(__file__).parents[3] / 'golden' / 'quantized'
SCHEMES = {
  f'group_{bits}': {'weights': {'num_bits': bits, 'symmetric': True}}
  for bits in (4, 8)
}
GIVEN = {
  'ct': {'quant_method': 'compressed-tensors', 'config_groups': SCHEMES},
  'fp8': {'quant_method': 'fp8', 'weight_block_size': [4, 8]},
  'mxfp4': {'quant_method': 'mxfp4'},
}


def there(prefix):
  """The stored tensors of one format."""
  found = weights.read_header(str(GOLDEN / 'stored.safetensors'))
  return {t.name: t for t in found if t.name.startswith(f'{prefix}.')}


def resolve(prefix, tensors=None, **changes):
  given = {formats.SETTINGS: GIVEN[prefix] | changes}
  return stored.resolve('config.json', given, tensors or there(prefix))


@pytest.fixture(scope='module')
def expected():
  return safetensors.numpy.load_file(GOLDEN / 'expected.safetensors')


@pytest.mark.parametrize('prefix', GIVEN)
def test_tensors_are_read_as_their_programs_read_them(prefix, expected):
  found = resolve(prefix)
  wanted = {n: a for n, a in expected.items() if n.startswith(f'{prefix}.')}
  assert found.keys() == wanted.keys() and wanted
  for name, array in wanted.items():
    tensor = found[name]
    assert (tensor.shape, tensor.dtype) == (array.shape, np.float32)
    np.testing.assert_array_equal(tensor.read(), array, err_msg=name)
    np.testing.assert_array_equal(tensor.read(slice(1, 2)), array[1:2])


def test_what_decoding_knows_stays_packed(expected):
  found = resolve('ct')
  packed = {name for name, tensor in found.items() if tensor.pack}
  assert packed == found.keys() - {'ct.floats.weight'}
  for name in packed:
    wide = rounding.unpack(*found[name].read_packed())
    np.testing.assert_array_equal(wide, expected[name])
  assert not any(t.pack for p in ('fp8', 'mxfp4') for t in resolve(p).values())


@pytest.mark.parametrize(
  ('prefix', 'lost'),
  [
    ('ct', 'ct.four.weight_scale'),
    ('ct', 'ct.four.weight_shape'),
    ('ct', 'ct.bytes.weight_scale'),
    ('ct', 'ct.experts_scale'),
    ('fp8', 'fp8.experts_scale_inv'),
    ('mxfp4', 'mxfp4.experts_scales'),
  ],
)
def test_missing_scales_are_refused_by_name(prefix, lost):
  tensors = there(prefix)
  del tensors[lost]
  with pytest.raises(errors.FolderError, match=f'has no {lost}, without'):
    resolve(prefix, tensors)


@pytest.mark.parametrize(
  ('prefix', 'changes', 'said'),
  [
    ('fp8', {'weight_block_size': [8, 8]}, r'needs \((2, )?2, 3\)'),
    ('fp8', {'weight_block_size': 'all'}, "weight_block_size .* is 'all'"),
    ('ct', {'config_groups': {}}, 'numbers of 4 or 8 bits'),
    ('ct', {'config_groups': {'g': {'weights': {'num_bits': 4,
     'symmetric': False}}}}, 'zero points'),
    ('ct', {'quant_method': 'bitsandbytes'}, "quant_method .* 'bitsandbytes'"),
    ('mxfp4', {'quant_method': 'fp8'}, 'of type uint8 and not explained'),
  ],
)  # fmt: skip
def test_settings_that_do_not_fit_are_refused(prefix, changes, said):
  with pytest.raises(errors.FolderError, match=said):
    resolve(prefix, **changes)


def test_numbers_without_settings_are_refused():
  with pytest.raises(errors.FolderError, match='has no quantization_config'):
    stored.resolve('config.json', {}, there('mxfp4'))


def test_a_tensor_that_is_there_twice_is_refused():
  tensors = there('mxfp4')
  plain = weights.Tensor('mxfp4.experts', 'f', 0, (1,), np.dtype(np.float32))
  with pytest.raises(errors.FolderError, match='is there twice'):
    resolve('mxfp4', tensors | {plain.name: plain})


def swapped(values):
  return values >> 4 | values << 4


@pytest.mark.parametrize(
  ('prefix', 'name', 'change'),
  [
    ('mxfp4', 'mxfp4.experts', lambda v, s: (swapped(v), s)),
    ('mxfp4', 'mxfp4.experts', lambda v, s: (v, np.roll(s, 1, -1))),
    ('mxfp4', 'mxfp4.experts', lambda v, s: (v, s + np.uint8(1))),
    ('fp8', 'fp8.layer.weight', lambda v, s: (v, s.T)),
    ('ct', 'ct.four.weight', lambda v, s: (v.byteswap(), s)),
    ('ct', 'ct.four.weight', lambda v, s: (v, np.roll(s, 1, 0))),
    ('ct', 'ct.eight.weight', lambda v, s: (v, np.roll(s, 1, 0))),
  ],
  ids=[
    'swapped_halves', 'another_block', 'twice', 'turned', 'swapped_bytes',
    'another_channel', 'another_channel_8',
  ],
)  # fmt: skip
def test_what_is_changed_is_caught(prefix, name, change, expected):
  tensor = resolve(prefix)[name]
  pair = tensor.values.read(), tensor.scale.read()
  assert close.error(tensor.widen(*pair), expected[name]) == 0
  assert close.error(tensor.widen(*change(*pair)), expected[name]) > 0.01
