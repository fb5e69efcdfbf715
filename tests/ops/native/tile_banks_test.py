# SPDX-License-Identifier: Apache-2.0
"""Lanes that LDS serves together meet each of its 32 banks once.

A CDNA 3 unit serves 16-byte reads and writes to 8 lanes at a time, in one of
the groups below, and 8-byte writes to 16 in a line (AMD's documentation of
Composable Kernel, "LDS bank conflicts"). Where a row lies is asked of wave.h.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ops import native

BANKS, WORD = 32, 4
IN_A_LINE = [range(8 * i, 8 * i + 8) for i in range(8)]
READS = [
  [*range(a, a + 4), *range(b, b + 4)]
  for half in (0, 32)
  for a, b in ((half + 0, half + 20), (half + 4, half + 16),
               (half + 8, half + 28), (half + 12, half + 24))
]  # fmt: skip
PERMUTED = '(row ^ (row >> 3 & 1)) * kStage + (piece ^ (row >> 1 & 3)) * 8'
PLAIN = 'row * kStage + piece * 8'
NO_EXCHANGE = 'row * kStage + (piece ^ (row >> 1 & 3)) * 8'


@pytest.fixture
def places(tile_probe):
  """[256, 4] bytes, of the sources as they are or patched."""

  def ask(*patches):
    tile_probe(*patches)
    shape = jax.ShapeDtypeStruct((256, 4), jnp.int32)
    return np.asarray(native.call('places', shape))

  return ask


def ways(addresses, size):
  """How often the busiest bank is asked for another word."""
  words = {(a + b) // WORD for a in addresses for b in range(0, size, WORD)}
  return max(np.bincount([word % BANKS for word in words], minlength=BANKS))


def reads(at, edge):
  """Of operands: lane l has row l % edge, and of depth the l // edge-th 8."""
  return max(
    ways([at[first + lane % edge, depth + lane // edge] for lane in group], 16)
    for first in range(0, 256, edge)
    for depth in range(0, 4, 64 // edge)
    for group in (*READS, *IN_A_LINE)
  )


def wide_reads(at):
  """By matrix instructions of 32 x 32."""
  return reads(at, 32)


def narrow_reads(at):
  """By those of 16 x 16."""
  return reads(at, 16)


def writes_along(at):
  """Of an operand along the depth: thread t has row t / 4, piece t % 4."""
  return max(
    ways([at[t // 4, t % 4] for t in range(first, first + 8)], 16)
    for first in range(0, 512, 8)
  )


def writes_across(at):
  """Of one that is turned: 4 of depth of row t / 8 % 32 * 8 + r."""
  place = lambda t, r: at[t // 8 % 32 * 8 + r, t % 8 // 2] + t % 2 * 8
  return max(
    ways([place(t, r) for t in range(first, first + 16)], 8)
    for r in range(8)
    for first in range(0, 256, 16)
  )


def test_no_bank_is_asked_twice(places):
  at = places()
  assert len(np.unique(at)) == at.size  # A place for each piece.
  for asked in (wide_reads, narrow_reads, writes_along, writes_across):
    assert asked(at) == 1, asked


@pytest.mark.parametrize(
  'other, worse',
  [
    (PLAIN, wide_reads),
    (PLAIN, narrow_reads),
    (NO_EXCHANGE, writes_across),
  ],
)
def test_without_the_permutation_banks_are_asked_twice(places, other, worse):
  assert worse(places(('wave.h', PERMUTED, other))) > 1
