# SPDX-License-Identifier: Apache-2.0
"""The controller of the balancing bias against its closed form."""

import jax.numpy as jnp
import numpy as np
import pytest

from zaya_jax import config as config_lib
from zaya_jax.optim import balance

# Two layers, three experts, the skip class.
LOAD = jnp.array([[6.0, 2.0, 0.0, 8.0], [1.0, 1.0, 2.0, 0.0]])


def buffers(classes=4):
  bias = jnp.tile(jnp.linspace(0.1, -1.0, classes)[None], (2, 1))
  return {'layers': {'router': {'balance_bias': bias}}}


def bias_of(tree):
  return np.asarray(tree['layers']['router']['balance_bias'])


def updated(loads, lr=1e-3, num_experts=3):
  """The bias after these loads, minus the bias before."""
  before = after = buffers(loads[0].shape[1])
  balancer = balance.make_balancer(config_lib.OptimConfig(balance_lr=lr))
  state = balancer.init(before)
  for load in loads:
    after, state = balance.update(balancer, after, state, load, num_experts)
  return bias_of(after) - bias_of(before)


def test_gradient_is_the_share_minus_an_even_share():
  found = balance.bias_gradient(LOAD, 3)
  expected = np.array([[6 / 8, 2 / 8, 0], [1 / 4, 1 / 4, 2 / 4]]) - 1 / 3
  np.testing.assert_allclose(found[:, :3], expected, rtol=1e-6)
  np.testing.assert_allclose(np.sum(found, axis=1), 0, atol=1e-7)


def test_skip_class_never_moves():
  loads = [LOAD, LOAD[:, ::-1], 100 * LOAD, jnp.zeros_like(LOAD)]
  moved = updated(loads)
  assert not np.any(moved[:, 3])
  assert np.all(moved[:, :3] != 0)


def test_first_update_is_the_learning_rate_against_the_excess():
  # Adam's first step: lr * g / (|g| + eps).
  moved = updated([LOAD], lr=1e-3)
  expected = -1e-3 * np.sign(balance.bias_gradient(LOAD, 3))
  # Differences of a bias of 1 in float32 carry 6e-8, of 1e-3.
  np.testing.assert_allclose(moved, expected, atol=2e-7)


def test_every_layer_moves_by_its_own_load():
  moved = updated([LOAD, LOAD])
  assert moved[0, 0] < 0 < moved[0, 2]
  assert moved[1, 2] < 0 < moved[1, 0]


def test_without_a_skip_class_all_classes_move():
  assert np.all(updated([LOAD[:, :3]]) != 0)


def test_even_load_and_no_load():
  # An even load holds the bias; no routed token at all counts as share 0.
  assert not np.any(updated([jnp.full((2, 4), 5.0)], num_experts=4))
  gradient = balance.bias_gradient(jnp.array([[0.0, 0.0, 9.0]]), 2)
  np.testing.assert_allclose(gradient, [[-0.5, -0.5, 0.0]])


@pytest.mark.parametrize('scale', [1, 1000])
def test_size_of_the_batch_does_not_matter(scale):
  found = balance.bias_gradient(scale * LOAD, 3)
  np.testing.assert_allclose(found, balance.bias_gradient(LOAD, 3), rtol=1e-6)


def test_rate_of_zero_freezes_the_bias():
  assert not np.any(updated([LOAD, LOAD], lr=0.0))
