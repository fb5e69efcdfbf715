# SPDX-License-Identifier: Apache-2.0
"""Muon on several devices: each matrix on one of them, to which it travels."""

import functools
import re

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from tests.support import close
from zaya_jax import config as config_lib
from zaya_jax.optim import muon
from zaya_jax.parallel import mesh as mesh_lib

ALL = ('fsdp', 'replica')
# Whole shapes and how they are divided; each number of matrices is uneven.
LEAVES = [
  ((3, 8, 16), P(None, ALL, None)),
  ((3, 16, 8), P(None, None, ALL)),  # Of one stack with the first.
  ((2, 3, 8, 8), P(None, None, ALL, None)),
  ((8, 8), P(ALL, None)),
  ((5, 6, 3), P(None, None, None)),  # Nothing divides it.
  ((3, 8, 16), P(None, 'fsdp', None)),  # A copy on each replica.
]


def given():
  rng = np.random.default_rng(1)
  return [rng.normal(size=shape).astype(np.float32) for shape, _ in LEAVES]


def orthogonalized(leaves=None):
  mesh = mesh_lib.make_mesh(config_lib.MeshConfig(replica=4, fsdp=2))
  placed = [
    jax.device_put(u, jax.sharding.NamedSharding(mesh, spec))
    for u, (_, spec) in zip(leaves or given(), LEAVES, strict=True)
  ]
  run = jax.jit(
    functools.partial(muon.orthogonalize_on_mesh, steps=5, dtype=None)
  )
  with jax.set_mesh(mesh):
    program = run.lower(placed).compile()
    return program(placed), program.as_text()


one = jax.jit(functools.partial(muon.orthogonalize, steps=5, dtype=None))


def test_each_matrix_is_treated_alone_wherever_it_lies():
  found, text = orthogonalized()
  for u, array, (shape, spec) in zip(given(), found, LEAVES, strict=True):
    assert (array.shape, array.sharding.spec) == (shape, spec)
    # Newton-Schulz grows what float32 rounds.
    assert close.error(np.asarray(array), one(u)) < 5 * close.FLOAT32_DEEP
  # Stacks of 8 x 16, of 8 x 8, and the copies: each there and back.
  assert len(re.findall(r' all-to-all\(', text)) == 6
  # The one that nothing divides.
  assert len(re.findall(r' all-gather\(', text)) == 1


def test_a_matrix_of_another_device_would_be_noticed():
  leaves = given()
  leaves[2][0, 0] += 1.0
  found, _ = orthogonalized(leaves)
  assert close.error(np.asarray(found[2]), one(given()[2])) > 0.01


@pytest.mark.parametrize('count', [1, 7, 8, 9])
def test_any_number_of_matrices_is_padded(count):
  mesh = mesh_lib.make_mesh(config_lib.MeshConfig(replica=8))
  u = jax.random.normal(jax.random.key(count), (count, 8, 4))
  with jax.set_mesh(mesh):
    placed = jax.device_put(
      u, jax.sharding.NamedSharding(mesh, P(None, 'replica', None))
    )
    (found,) = jax.jit(
      lambda u: muon.orthogonalize_on_mesh([u], steps=5, dtype=None)
    )(placed)
  assert close.error(np.asarray(found), one(u)) < 5 * close.FLOAT32_DEEP
