# SPDX-License-Identifier: Apache-2.0
"""The product by parts against float64."""

import jax
import jax.numpy as jnp
import numpy as np

from ops.router import two_parts


def test_value_and_gradients_are_those_of_float64():
  rng = np.random.default_rng(0)
  x = jnp.asarray(rng.standard_normal((2, 40, 96)), jnp.bfloat16)
  w = jnp.asarray(rng.standard_normal((96, 24)), jnp.float32)
  dy = jnp.asarray(rng.standard_normal((2, 40, 24)), jnp.float32)
  y, vjp = jax.vjp(two_parts.linear, x, w)
  dx, dw = vjp(dy)
  assert (y.dtype, dx.dtype, dw.dtype) == ('float32', 'bfloat16', 'float32')
  x64, w64, dy64 = (np.asarray(a, np.float64) for a in (x, w, dy))
  error = lambda found, wanted: (
    np.abs(np.asarray(found, np.float64) - wanted).max() / np.abs(wanted).max()
  )
  wanted = x64 @ w64
  assert error(y, wanted) < 2**-15
  assert error(dw, np.einsum('bld,blf->df', x64, dy64)) < 2**-15
  assert error(dx, dy64 @ w64.T) < 2**-8
  # One part is not enough.
  rounded = np.asarray(w.astype(jnp.bfloat16), np.float64)
  assert error(x64 @ rounded, wanted) > 2**-12


def test_gradients_by_parts_are_those_of_float64_and_the_value_is_exact():
  rng = np.random.default_rng(1)
  x, w, dy = (
    jnp.asarray(rng.standard_normal(shape), jnp.float32)
    for shape in ((2, 40, 96), (96, 24), (2, 40, 24))
  )
  y, vjp = jax.vjp(two_parts.gradients_of, x, w)
  dx, dw = vjp(dy)
  assert {a.dtype.name for a in (y, dx, dw)} == {'float32'}
  x64, w64, dy64 = (np.asarray(a, np.float64) for a in (x, w, dy))
  error = lambda found, wanted: (
    np.abs(np.asarray(found, np.float64) - wanted).max() / np.abs(wanted).max()
  )
  assert error(y, x64 @ w64) < 2**-20
  assert error(dw, np.einsum('bld,blf->df', x64, dy64)) < 2**-15
  assert error(dx, dy64 @ w64.T) < 2**-15
  # One part of either is not enough.
  rounded = np.asarray(x.astype(jnp.bfloat16), np.float64)
  one = np.einsum('bld,blf->df', rounded, dy64)
  assert error(dw, one) > 2**-12


def test_parts_survive_the_compiler():
  x = jnp.ones((1, 1, 1), jnp.bfloat16)
  w = jnp.full((1, 1), 1 + 2**-12, jnp.float32)
  assert jax.jit(two_parts.linear)(x, w).item() == 1 + 2**-12
