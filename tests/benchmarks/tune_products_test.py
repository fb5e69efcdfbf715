# SPDX-License-Identifier: Apache-2.0
"""The search for tiles, interpreted and tiny: it says a time for each."""

import pytest

from benchmarks import tune_products
from ops.triton import tiles


@pytest.fixture(autouse=True)
def small(monkeypatch):
  # The second is no tile: it must not end the search.
  sizes = tiles.Tile(16, 16, 16, 4, 1), tiles.Tile(0, 16, 16, 4, 1)
  for name in tune_products.SETTINGS:
    monkeypatch.setitem(tune_products.SETTINGS, name, sizes)


def test_every_kernel_of_the_table_is_searched():
  for table in tiles.TABLE.values():
    products = {name for name in table if not name.startswith('router')}
    assert products == tune_products.SETTINGS.keys()


def test_experts():
  rows = list(tune_products.tune_experts((40, 3, 16, 32), 'skewed', 1))
  names = [row['kernel'] for row in rows[::2]]
  assert names == [k for k in tune_products.SETTINGS if 'experts' in k]
  assert all(row['ms'] > 0 for row in rows[::2])
  assert all('failed' in row for row in rows[1::2])


def test_newton_schulz():
  rows = list(tune_products.tune_newton_schulz((1, 32, 16), 1))
  assert [row['kernel'] for row in rows] == ['x x^T', 'polynomial'] * 2
  assert all('ms' in row for row in rows[:2])
  assert all('failed' in row for row in rows[2:])
