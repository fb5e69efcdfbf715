# SPDX-License-Identifier: Apache-2.0
"""Kernels for other machines than this one, for the tests that ask for them."""

import pytest

from ops import native, warp_groups
from ops.attention import mosaic as attention
from ops.cca import mosaic as cca
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
    (attention.hopper_forward, plain_attention, ('forward',)),
    (attention.hopper_keys, plain_attention, ('of_keys',)),
    (
      attention.hopper_queries,
      plain_attention,
      ('of_queries', 'of_queries_saved'),
    ),
    (cca.hopper_forward, plain_cca, ('forward',)),
    (cca.hopper_inputs, plain_cca, ('of_inputs',)),
    (cca.hopper_kernel, plain_cca, ('of_kernel',)),
  ):
    for name in names:
      monkeypatch.setattr(module, name, getattr(meanings, name))
