# SPDX-License-Identifier: Apache-2.0
"""Sums of rows by place: in float64, and in their order bit for bit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ops import dispatch
from ops.triton import row_sums
from tests.support import gpus

PLACES, WIDTH = 12, 20
ROWS = row_sums._SIZES['cpu'].rows


def inputs():
  """Rows, and places: some of none, of one and of several blocks."""
  # Nine end in the block where they begin, one fills a block, 3 and 7 have
  # more; the last block is not full, and 5 has none.
  counts = {0: 3, 1: 5, 2: 8, 3: 27, 4: 1, 6: 2, 7: 12, 8: 1, 9: 1, 11: 1}
  rng = np.random.default_rng(0)
  place = rng.permutation(np.repeat([*counts], [*counts.values()]))
  # Two that are left out.
  place = np.concatenate([place, [PLACES, -1]])
  row = rng.standard_normal((place.size, WIDTH))
  return row.astype(np.float32), place.astype(np.int32)


def found(row, place):
  run = lambda *a: row_sums.sum_rows(*a, PLACES, jnp.float32)
  return np.asarray(jax.jit(run)(row, place))


def sums(row, place, block, dtype):
  """In the order of the kernels: rows of a block, then what blocks leave."""
  order = np.argsort(place.astype(np.uint32), kind='stable')
  total = np.zeros((PLACES, WIDTH), dtype)
  for each in range(PLACES):
    pieces = {}
    for at, token in enumerate(order):
      if place[token] == each:
        piece, value = pieces.get(at // block), row[token].astype(dtype)
        pieces[at // block] = value if piece is None else piece + value
    if pieces:
      first, *rest = pieces.values()
      total[each] = sum(rest, start=first)
  return total


@pytest.fixture(scope='module')
def made():
  return found(*inputs())


def test_sums_are_those_of_float64(made):
  wanted = sums(*inputs(), ROWS, np.float64)
  np.testing.assert_allclose(made, wanted, rtol=0, atol=2e-6)
  assert not made[5].any()


def test_order_is_that_of_the_rows_block_by_block(made):
  """So two runs have the same bits, however programs are scheduled."""
  np.testing.assert_array_equal(made, sums(*inputs(), ROWS, np.float32))
  # Any other order would show.
  other = sums(*inputs(), 10**6, np.float32)
  assert np.any(made != other)
  row, place = inputs()
  backwards = sums(row[::-1], place[::-1], ROWS, np.float32)
  assert np.any(made != backwards)


def _without_pieces(piece_ref, place_ref, made_ref, whole_ref, **_):
  """What goes on in another block is lost."""


def test_lost_pieces_show(monkeypatch, made):
  monkeypatch.setattr(row_sums, '_join', _without_pieces)
  wrong = found(*inputs())
  differ = np.flatnonzero(np.any(wrong != made, axis=1))
  # Those that the end of a block cuts.
  assert {3, 7} <= set(differ) and 0 not in differ


@pytest.mark.parametrize('platform', ['cuda', 'rocm'])
def test_kernels_lower_for_gpus(platform):
  row = jax.ShapeDtypeStruct((65536, 512), jnp.float32)
  place = jax.ShapeDtypeStruct((65536,), jnp.int32)
  run = lambda *a: row_sums.sum_rows(*a, 8192, jnp.float32)
  with dispatch.compile_for(platform):
    lowered = gpus.lower(jax.jit(run).trace(row, place), platform)
  assert len(gpus.kernels(lowered)) == 2
  assert 'scatter' not in lowered.as_text()


def test_what_is_refused():
  assert row_sums.unsupported(65536, 512, 8192) is None
  assert 'nothing' in row_sums.unsupported(0, 512, 8192)
  assert '32 bits' in row_sums.unsupported(8, 2**16, 2**15)
