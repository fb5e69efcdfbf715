# SPDX-License-Identifier: Apache-2.0
"""Kernels for other machines than this one, for the tests that ask for them."""

import pytest

from ops import native
from ops.experts import mosaic
from tests.ops import plain_products
from tests.ops.native import build


@pytest.fixture
def emulated(monkeypatch):
  """Kernels are those of ops/native as they are."""
  if reason := build.missing('c++'):
    pytest.skip(reason)
  path = build.build('cpu') / 'libzaya_ops.so'
  monkeypatch.setenv('ZAYA_OPS_LIBRARY', str(path))
  return native


@pytest.fixture
def plain(monkeypatch):
  """Products for Hopper GPUs are what they mean, in jax.numpy."""
  monkeypatch.setattr(mosaic, 'unavailable', lambda: None)
  monkeypatch.setattr(mosaic.hopper, 'up', plain_products.up)
  monkeypatch.setattr(mosaic.hopper, 'matmul', plain_products.matmul)
  monkeypatch.setattr(mosaic.hopper, 'd_weights', plain_products.d_weights)
