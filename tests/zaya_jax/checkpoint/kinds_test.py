# SPDX-License-Identifier: Apache-2.0
"""What is said about the arrays of two trees that differ."""

import jax.numpy as jnp

from zaya_jax.checkpoint import arrays, kinds


def test_differences_name_leaf_and_both_sides():
  saved = arrays.describe({'a': jnp.zeros((2, 3)), 'old': jnp.zeros(1)})
  wanted = arrays.describe({'a': jnp.zeros((2, 4)), 'new': jnp.zeros(1)})
  text = kinds.differences(saved, wanted)
  assert 'a is float32[2,3] in the checkpoint and float32[2,4] here' in text
  assert 'old is float32[1] in the checkpoint and absent here' in text
  assert 'new is absent in the checkpoint and float32[1] here' in text
  assert not kinds.differences(saved, saved)


def test_many_differences_are_counted_rather_than_listed():
  saved = {f'leaf{i}': 'float32[1]' for i in range(9)}
  assert kinds.differences(saved, {}).endswith('; 4 more')
