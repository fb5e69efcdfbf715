# SPDX-License-Identifier: Apache-2.0
"""The digest of a step: that of its rows, however they are divided."""

import jax
import numpy as np
import pytest

from tests.support import meshes, quick
from zaya_jax.data.ledger import digest
from zaya_jax.parallel import batch as batch_lib
from zaya_jax.train import digest as digest_lib

QUICK = {'zero_2_ring_2', 'all_but_zero'}


def expected(batch):
  columns = np.arange(batch['tokens'].shape[1], dtype=np.uint32)
  *sums, numbers = digest.of_batch(batch, columns)
  rows = np.stack(digest.finish(*sums)).sum(axis=1, dtype=np.uint32)
  return [*rows, *numbers]


def on(shape, batch):
  config = meshes.config_of(**meshes.SHAPES[shape])
  mesh = meshes.mesh_of(config)
  with jax.set_mesh(mesh):
    placed = batch_lib.put_batch(mesh, batch)
    return np.asarray(jax.jit(digest_lib.of_batch)(placed)).tolist()


@pytest.mark.parametrize('shape', quick.only(meshes.SHAPES, *QUICK))
def test_digest_does_not_depend_on_the_mesh(shape):
  assert on(shape, meshes.BATCH) == expected(meshes.BATCH)


def test_without_a_mesh_it_is_the_same():
  found = jax.jit(digest_lib.of_batch)(meshes.BATCH)
  assert found.tolist() == expected(meshes.BATCH)


def test_columns_of_another_context_are_noticed(monkeypatch):
  # As if each device took its columns for neighbours.
  monkeypatch.setattr(
    digest_lib.zigzag, 'order', lambda length, parts: np.arange(length)
  )
  found, wanted = on('zero_2_ring_2', meshes.BATCH), expected(meshes.BATCH)
  assert found[:2] != wanted[:2]
  assert found[2:] == wanted[2:]
