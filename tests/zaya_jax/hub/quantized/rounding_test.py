# SPDX-License-Identifier: Apache-2.0
"""Rounding to few bits: closed forms, bounds and what is a fraction."""

import ml_dtypes
import numpy as np
import pytest

from tests.support import few_bits
from zaya_jax.hub.quantized import rounding
from zaya_jax.model import shapes


def draw(*shape):
  return np.random.default_rng(0).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize('kind', ['int8', 'int4'])
def test_what_is_unpacked_is_number_times_scale(kind):
  values, scale = few_bits.draw(1, (2,), kind)
  expected = few_bits.wide(values, scale)
  np.testing.assert_array_equal(rounding.unpack(values, scale), expected)


@pytest.mark.parametrize('kind', ['int8', 'int4'])
def test_a_matrix_of_few_values_comes_back(kind):
  values, scale = few_bits.draw(1, (3,), kind, inputs=128)
  group = 128 if kind == 'int8' else shapes.GROUP
  scale = np.resize(scale, (*scale.shape[:-1], 128 // group))
  # The largest number of each group tells the scale.
  if kind == 'int8':
    values[..., 0] = 127
  else:
    values[..., ::32] &= 0xF0  # -8.
  w = rounding.unpack(values, scale)
  np.testing.assert_array_equal(rounding.unpack(*rounding.pack(w, kind)), w)


def test_shapes_and_types_are_those_of_decoding():
  values, scale = rounding.pack(draw(2, 6, 192), 'int8')
  assert (values.dtype, values.shape) == (np.int8, (2, 6, 192))
  assert (scale.dtype, scale.shape) == (ml_dtypes.bfloat16, (2, 6, 1))
  values, scale = rounding.pack(draw(2, 6, 192), 'int4')
  assert (values.dtype, values.shape) == (np.uint8, (2, 6, 96))
  assert (scale.dtype, scale.shape) == (ml_dtypes.bfloat16, (2, 6, 3))


@pytest.mark.parametrize(
  ('inputs', 'group'), [(2048, 64), (160, 40), (48, 48), (134, 2), (66, 22)]
)
def test_group_is_the_largest_even_divisor_up_to_64(inputs, group):
  assert shapes.group_of(inputs) == group


def test_odd_inputs_have_no_groups():
  with pytest.raises(ValueError, match='63 inputs are odd'):
    shapes.group_of(63)


def test_an_element_of_int8_is_half_a_step_off_at_most():
  w = draw(50, 256)
  values, scale = rounding.pack(w, 'int8')
  step = scale.astype(np.float64)
  largest = np.abs(w).max(axis=1, keepdims=True)
  # The scale is that of the largest, to the digits of bfloat16.
  np.testing.assert_allclose(step, largest / 127, rtol=2**-8)
  apart = np.abs(few_bits.wide(values, scale) - w)
  assert (apart <= 0.75 * step).all()  # The largest may exceed 127 by a half.
  assert (apart <= 0.5001 * step)[np.abs(w) < 126 * step].all()


def uniform_grid_error(levels):
  """What any 16 evenly spaced values leave of normal numbers, at the least."""
  x = draw(200_000).astype(np.float64)
  steps = np.linspace(0.2, 0.5, 61)
  rounded = [np.clip(np.rint(x / s), -levels // 2, levels // 2 - 1) * s
             for s in steps]  # fmt: skip
  return min(np.sqrt(np.mean((r - x) ** 2)) for r in rounded)


def test_int4_is_as_near_as_the_best_even_grid_of_16_values():
  best = uniform_grid_error(16)
  assert 0.10 < best < 0.12  # 0.1074 by Max, 1960, for the symmetric grid.
  # Each group has a grid of its own: better than one for all.
  assert rounding.error(draw(500, 64), 'int4') < best
  # With a scale of the largest element / 7, as is common, it is worse.
  w = draw(500, 64).astype(np.float64)
  scale = np.abs(w).max(axis=1, keepdims=True) / 7
  common = np.clip(np.rint(w / scale), -8, 7) * scale
  plain = np.linalg.norm(common - w) / np.linalg.norm(w)
  assert rounding.error(w, 'int4') < 0.9 * plain


def test_zeros_stay_zeros():
  for kind in ('int8', 'int4'):
    values, scale = rounding.pack(np.zeros((3, 64), np.float32), kind)
    assert not np.any(rounding.unpack(values, scale)), kind


def test_blocks_of_rows_do_not_matter(monkeypatch):
  w = draw(7, 9, 128)
  for kind in ('int8', 'int4'):
    whole = rounding.pack(w, kind)
    monkeypatch.setattr(rounding, '_BLOCK', 200)
    for a, b in zip(whole, rounding.pack(w, kind), strict=True):
      np.testing.assert_array_equal(a, b)
    monkeypatch.undo()


def test_another_type_or_order_in_memory_gives_the_same_bits():
  w = draw(64, 128).astype(ml_dtypes.bfloat16)
  turned = np.ascontiguousarray(w.T).T
  for kind in ('int8', 'int4'):
    whole = rounding.pack(w.astype(np.float32), kind)
    for other in (w, turned):
      for a, b in zip(whole, rounding.pack(other, kind), strict=True):
        np.testing.assert_array_equal(a, b)
