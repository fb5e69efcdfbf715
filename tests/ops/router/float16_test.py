# SPDX-License-Identifier: Apache-2.0
"""Float32 products by parts of float16 against float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ops.router import float16


def _drawn(scale_x, scale_w):
  rng = np.random.default_rng(1)
  draw = lambda *shape: rng.standard_normal(shape).astype(np.float32)
  return scale_x * draw(2, 40, 96), scale_w * draw(96, 24), draw(2, 40, 24)


def _error(found, wanted, x, w):
  """The largest, over the sum of magnitudes of its terms."""
  found = np.asarray(found, np.float64)
  return (np.abs(found - wanted) / (np.abs(x) @ np.abs(w))).max()


@pytest.mark.parametrize('scale_x, scale_w', [(1, 1), (1e-3, 1e4), (1e5, 1e-6)])
@pytest.mark.parametrize('loose', [1, 4096])
def test_value_is_exact_to_22_bits_at_any_scale(scale_x, scale_w, loose):
  x, w, _ = _drawn(scale_x, scale_w)
  most = np.float32(loose * np.abs(x).max())
  y = jax.jit(float16.product)(x, w, most)
  x, w = x.astype(np.float64), w.astype(np.float64)
  assert _error(y, x @ w, x, w) < 2**-21
  # High parts alone are not enough, nor is a bound that does not hold.
  fraction, exponent = np.frexp(x)
  high = np.ldexp(np.round(fraction * 2**11), exponent - 11)
  assert not _error(high @ w, x @ w, x, w) < 2**-16
  y = jax.jit(float16.product)(x, w, np.float32(most / loose / 64))
  assert not np.isfinite(y).all()


def test_gradients_are_those_of_float64_and_the_bound_has_none():
  x, w, dy = _drawn(1, 1)
  most = np.abs(x).max()
  _, vjp = jax.vjp(float16.product, *map(jnp.asarray, (x, w, most)))
  dx, dw, d_most = vjp(jnp.asarray(dy))
  assert d_most == 0
  error = lambda found, wanted: (
    np.abs(np.asarray(found, np.float64) - wanted).max() / np.abs(wanted).max()
  )
  x, w, dy = (a.astype(np.float64) for a in (x, w, dy))
  assert error(dx, dy @ w.T) < 2**-15
  assert error(dw, np.einsum('bld,blf->df', x, dy)) < 2**-15


def test_numbers_far_below_the_largest_keep_what_counts():
  x, w, _ = _drawn(1, 1)
  x[:, :, 0] = 3e4
  w[0] = 0
  y = jax.jit(float16.product)(x, w, np.float32(3e4))
  small = np.abs(x[..., 1:].astype(np.float64)) @ np.abs(w[1:])
  wanted = x.astype(np.float64) @ w
  assert (np.abs(np.asarray(y, np.float64) - wanted) / small).max() < 2**-20
