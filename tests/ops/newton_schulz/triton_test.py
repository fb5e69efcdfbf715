# SPDX-License-Identifier: Apache-2.0
"""Symmetric products in Triton: their tiles, and what is computed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ops.newton_schulz import triton
from ops.triton import tiles
from tests.support import close

SIZES = {
  'square': tiles.Tile(16, 16, 32, 4, 1),
  'wide': tiles.Tile(16, 64, 16, 4, 1),
  'tall': tiles.Tile(32, 16, 16, 4, 1),
}


@pytest.mark.parametrize('name', SIZES)
@pytest.mark.parametrize('n', [64, 128, 64 * 63])
def test_tiles_are_one_triangle_once(name, n):
  size = SIZES[name]
  count = triton.num_tiles(n, size)
  rows, columns = triton.tile_index(jnp.arange(count), size)
  found = np.zeros((n // size.m, n // size.n), int)
  np.add.at(found, (np.asarray(rows), np.asarray(columns)), 1)
  first, second = np.indices(found.shape)
  first, second = first * size.m, second * size.n
  lower = second < first + size.m  # It has an element at or below.
  upper = first < second + size.n
  np.testing.assert_array_equal(found, upper if name == 'wide' else lower)


def product(name, *arrays, **factors):
  with tiles.use(symmetric=SIZES[name]):
    return np.asarray(triton.symmetric_matmul(*arrays, **factors))


@pytest.mark.parametrize('name', SIZES)
def test_product_is_symmetric_and_right(name):
  a = jax.random.normal(jax.random.key(0), (2, 128, 96))
  wide = np.asarray(a, np.float64)
  gram = wide @ wide.mT
  found = product(name, a, a)
  close.assert_close(found, gram, close.FLOAT32)
  np.testing.assert_array_equal(found, found.mT)
  a = jnp.asarray(gram / 100, jnp.float32)
  wide = np.asarray(a, np.float64)
  found = product(name, a, a, a, alpha=2.0, beta=-3.0, diagonal=0.5)
  wanted = 2 * wide @ wide - 3 * wide + 0.5 * np.eye(128)
  close.assert_close(found, wanted, close.FLOAT32)
  np.testing.assert_array_equal(found, found.mT)
  scale = jnp.asarray([0.5, 7.0])
  found = product(name, a, a, a, scale, alpha=2.0, beta=-3.0, diagonal=0.5)
  scale = np.asarray(scale)[:, None, None]
  close.assert_close(found, scale * wanted, close.FLOAT32)
  assert close.error(found, scale[::-1] * wanted) > 0.1


@pytest.mark.parametrize('name', SIZES)
def test_product_of_two_that_commute_is_symmetric_to_the_bit(name):
  x = np.random.default_rng(0).standard_normal((1, 128, 64))
  gram = x @ x.mT / 64
  a, b = (jnp.asarray(p, jnp.float32) for p in (gram, 2 * gram - gram @ gram))
  found = product(name, a, b)
  wanted = np.asarray(a, np.float64) @ np.asarray(b, np.float64)
  close.assert_close(found, wanted, close.FLOAT32_DEEP)
  np.testing.assert_array_equal(found, found.mT)


def test_a_tile_left_out_is_seen(monkeypatch):
  index = triton.tile_index
  monkeypatch.setattr(
    triton, 'tile_index', lambda t, size: index(jnp.maximum(t - 1, 0), size)
  )
  a = jax.random.normal(jax.random.key(0), (1, 64, 32))
  found = product('wide', a, a)
  assert not np.allclose(found, a @ a.mT, atol=1e-3)
