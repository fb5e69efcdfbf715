# SPDX-License-Identifier: Apache-2.0
"""Products of the model and their gradients: values and types."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support import close
from zaya_jax.model import layers

AXES = 'BLD,DF->BLF'


def draw(dtype):
  rng = np.random.default_rng(0)
  x, w, d = (
    rng.standard_normal(shape, np.float32)
    for shape in ((2, 5, 24), (24, 40), (2, 5, 40))
  )
  return jnp.asarray(x, dtype), jnp.asarray(w), jnp.asarray(d, dtype)


def with_gradients(product, x, w, d):
  out, vjp = jax.vjp(product, x, w)
  return out, *vjp(d)


def products(product, dtype):
  """What each product of value and gradients multiplies, and makes."""
  found = jax.make_jaxpr(lambda *a: with_gradients(product, *a))(*draw(dtype))
  text = str(found)
  dots = [line for line in text.splitlines() if 'dot_general' in line]
  assert len(dots) == 3
  return [line.split('dot_general')[0].split(':')[-1][:4] for line in dots]


@pytest.mark.parametrize(
  'dtype, tolerance', [('float32', close.FLOAT32), ('bfloat16', close.BFLOAT16)]
)
def test_product_and_gradients_are_those_of_float64(dtype, tolerance):
  x, w, d = draw(dtype)
  exact = [np.asarray(a, np.float64) for a in (x, w.astype(dtype), d)]
  expected = (
    np.einsum(AXES, *exact[:2]),
    np.einsum('BLF,DF->BLD', exact[2], exact[1]),
    np.einsum('BLD,BLF->DF', exact[0], exact[2]),
  )
  found = with_gradients(layers.linear, x, w, d)
  assert [a.dtype for a in found] == [x.dtype, x.dtype, w.dtype]
  close.assert_close(found, expected, tolerance)


def test_bfloat16_is_multiplied_as_bfloat16():
  assert products(layers.linear, 'bfloat16') == ['bf16', 'bf16', 'bf16']


def test_the_gradient_of_jax_would_multiply_in_float32():
  def plain(x, w):
    w = w.astype(x.dtype)
    out = jnp.einsum(AXES, x, w, preferred_element_type=jnp.float32)
    return out.astype(x.dtype)

  assert products(plain, 'bfloat16') == ['f32[', 'f32[', 'f32[']


def test_bias_is_rounded_with_the_sum_only():
  x, w = -jnp.ones((1, 1, 1), jnp.bfloat16), jnp.ones((1, 1))
  bias = jnp.array([1 + 2.0**-8])  # In bfloat16 it would be 1.
  assert layers.linear(x, w, bias).item() == 2.0**-8
