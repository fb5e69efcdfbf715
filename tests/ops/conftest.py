# SPDX-License-Identifier: Apache-2.0
"""Kernels for other machines than this one, for the tests that ask for them."""

import pytest

from ops import native, persistent
from ops.experts import hopper as experts
from ops.newton_schulz import hopper as newton_schulz
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
  monkeypatch.setattr(persistent, 'unavailable', lambda: None)
  for name in ('up', 'matmul', 'd_up', 'd_weights'):
    monkeypatch.setattr(experts, name, getattr(plain_products, name))
  symmetric = plain_products.symmetric_matmul
  monkeypatch.setattr(newton_schulz, 'symmetric_matmul', symmetric)
