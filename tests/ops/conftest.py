# SPDX-License-Identifier: Apache-2.0
"""Kernels for other machines than this one, for the tests that ask for them."""

import pytest

from ops import native
from ops.attention import hopper as attention
from ops.cca import hopper as cca
from ops.cross_entropy.hopper import exponentials
from ops.experts.hopper import products
from ops.hopper import warp_groups
from ops.newton_schulz.hopper import symmetric
from tests.support.ops import native_build as build
from tests.support.ops import plain_attention, plain_cca, plain_products


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
    (products, plain_products, ('up', 'matmul', 'd_up', 'd_weights')),
    (exponentials, plain_products, ('exponentials',)),
    (symmetric, plain_products, ('symmetric_matmul',)),
    (attention.forward, plain_attention, ('forward',)),
    (attention.keys, plain_attention, ('of_keys',)),
    (
      attention.queries,
      plain_attention,
      ('of_queries', 'of_queries_saved'),
    ),
    (cca.forward, plain_cca, ('forward',)),
    (cca.of_inputs, plain_cca, ('of_inputs',)),
    (cca.of_kernel, plain_cca, ('of_kernel',)),
  ):
    for name in names:
      monkeypatch.setattr(module, name, getattr(meanings, name))
