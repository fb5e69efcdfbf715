# SPDX-License-Identifier: Apache-2.0
"""Kernels for other machines than this one, for the tests that ask for them."""

import pytest

from ops import native, warp_groups
from ops.attention import hopper_forward, hopper_keys, hopper_queries
from ops.cca import hopper_convolve, hopper_kernel
from ops.cross_entropy import hopper as cross_entropy
from ops.experts import hopper as experts
from ops.newton_schulz import hopper as newton_schulz
from tests.ops import plain_attention, plain_cca, plain_products
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
  monkeypatch.setattr(warp_groups, 'unavailable', lambda: None)
  for module, meanings, names in (
    (experts, plain_products, ('up', 'matmul', 'd_up', 'd_weights')),
    (cross_entropy, plain_products, ('exponentials',)),
    (newton_schulz, plain_products, ('symmetric_matmul',)),
    (hopper_forward, plain_attention, ('forward',)),
    (hopper_keys, plain_attention, ('of_keys',)),
    (hopper_queries, plain_attention, ('of_queries', 'of_queries_saved')),
    (hopper_convolve, plain_cca, ('forward', 'of_inputs')),
    (hopper_kernel, plain_cca, ('of_kernel',)),
  ):
    for name in names:
      monkeypatch.setattr(module, name, getattr(meanings, name))
