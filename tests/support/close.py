# SPDX-License-Identifier: Apache-2.0
"""How close two arrays must be: the tolerances of all tests, with reasons."""

from typing import Any

import jax
import numpy as np

# Of the largest element. Two correct float32 programs differ by the order of
# their sums, about sqrt(length of a sum) * 2^-24; the sums here are short.
FLOAT32 = 2e-6
# A few such programs one behind the other, as in a model of some layers.
FLOAT32_DEEP = 2e-5
# bfloat16 keeps 8 bits: 2^-8 for each rounding, of which there are a few.
BFLOAT16 = 2e-2


def error(found: Any, expected: Any) -> float:
  """The largest difference, over the largest expected element (or 1e-30)."""
  found, expected = np.asarray(found), np.asarray(expected)
  assert found.shape == expected.shape, (found.shape, expected.shape)
  found, expected = found.astype(np.float64), expected.astype(np.float64)
  assert np.isfinite(found).all() and np.isfinite(expected).all()
  if not found.size:
    return 0.0
  return np.abs(found - expected).max() / max(np.abs(expected).max(), 1e-30)


def assert_close(found: Any, expected: Any, tolerance: float) -> None:
  """Checks every leaf of two equal trees, naming the leaf that differs."""
  assert jax.tree.structure(found) == jax.tree.structure(expected)
  pairs = zip(
    jax.tree_util.tree_leaves_with_path(found),
    jax.tree.leaves(expected),
    strict=True,
  )
  for (path, leaf), other in pairs:
    difference = error(leaf, other)
    where = jax.tree_util.keystr(path)
    assert difference <= tolerance, f'{where} differs by {difference:.2g}'
