# SPDX-License-Identifier: Apache-2.0
"""The controller of the balancing bias against its closed form."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from zaya_jax import config as config_lib
from zaya_jax.model import router
from zaya_jax.optim import balance

# Two layers, three experts, the skip class.
LOAD = jnp.array([[6.0, 2.0, 0.0, 8.0], [1.0, 1.0, 2.0, 0.0]])


def buffers(classes=4):
  bias = jnp.tile(jnp.linspace(0.1, -1.0, classes)[None], (2, 1))
  return {'layers': {'router': {'balance_bias': bias}}}


def bias_of(tree):
  return np.asarray(tree['layers']['router']['balance_bias'])


@functools.cache
def balancer_of(lr, rule, num_experts, centered):
  """The balancer, and its step: compiled once for a shape."""
  balancer = balance.make_balancer(
    config_lib.OptimConfig(balance_lr=lr, balance=rule)
  )
  return balancer, jax.jit(
    lambda *now: balance.update(balancer, *now, num_experts, centered=centered)
  )


def course(
  loads, lr=1e-3, num_experts=3, rule='adam', sample=None, centered=False
):
  """After each of these loads, the bias minus the bias at first."""
  before = after = buffers(loads[0].shape[1])
  balancer, step = balancer_of(lr, rule, num_experts, centered)
  state, found = balancer.init(before), []
  for tokens in loads:
    some = jnp.zeros((2, 0, tokens.shape[1])) if sample is None else sample
    load = router.Load(tokens=tokens, sample=some)
    after, state = step(after, state, load)
    found.append(bias_of(after) - bias_of(before))
  return found


def updated(loads, **settings):
  """The bias after these loads, minus the bias before."""
  return course(loads, **settings)[-1]


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


@pytest.mark.parametrize('rule', ['quantile', 'adam', 'sign'])
def test_rate_of_zero_freezes_the_bias(rule):
  sample = jnp.stack([uneven(3, skip=True)] * 2)
  assert not np.any(updated([LOAD, LOAD], lr=0.0, rule=rule, sample=sample))


def test_where_a_loss_balances_the_bias_stays():
  assert not np.any(updated([LOAD, LOAD], lr=1.0, rule='loss'))


def test_sign_moves_by_the_rate_whatever_the_excess():
  moved = updated([LOAD, LOAD], lr=1e-2, rule='sign')
  expected = -2e-2 * np.sign(balance.bias_gradient(LOAD, 3))
  np.testing.assert_allclose(moved, expected, atol=2e-7)


def test_quantile_goes_all_of_the_shift_and_later_a_part():
  some = functools.partial(uneven, 3, tokens=256, skip=True)
  sample = jnp.stack([some(), some(0.1)])
  full = np.stack([shift(one, 3) for one in sample])
  moved = course([LOAD] * 201, rule='quantile', sample=sample)
  np.testing.assert_allclose(moved[0], full, atol=2e-7)
  late = moved[200] - moved[199]
  np.testing.assert_allclose(late, full * 100 / 201, atol=1e-4)


def test_centered_biases_of_experts_have_mean_zero():
  (moved,) = [updated([LOAD], centered=True)]
  before = bias_of(buffers())
  found = moved + before
  np.testing.assert_allclose(found[:, :3].mean(1), 0, atol=1e-7)
  assert not np.any(moved[:, 3])  # Nor does the skip class move for it.
  free = updated([LOAD]) + before
  assert np.abs(free[:, :3].mean(1)).min() > 0.1
  differences = lambda bias: np.diff(bias[:, :3])
  np.testing.assert_allclose(differences(found), differences(free), atol=2e-7)


def test_a_run_goes_on_with_another_rule():
  states = [
    balance.make_balancer(config_lib.OptimConfig(balance=rule)).init(buffers())
    for rule in ('quantile', 'adam', 'sign')
  ]
  assert len({str(jax.tree.structure(state)) for state in states}) == 1


def uneven(experts, scale=1.0, tokens=2048, skip=False):
  """[T, X] probabilities of a router that all tokens like alike."""
  rng = np.random.default_rng(experts)
  common = 3 * rng.normal(size=experts)
  odds = np.exp(scale * (rng.normal(size=(tokens, experts)) + common))
  probs = np.float32(odds / odds.sum(axis=1, keepdims=True))
  pad = np.full((tokens, int(skip)), -0.99)  # The skip class, with its bias.
  return jnp.asarray(np.concatenate([probs, pad], axis=1))


def shares(biased, experts):
  """[E] share of the tokens that count, an even one being 1."""
  biased = np.asarray(biased)[np.isfinite(biased[:, 0])]
  count = np.bincount(biased.argmax(1), minlength=biased.shape[1])
  return count[:experts] / len(biased) * experts


shift = jax.jit(balance.shift, static_argnums=1)


def after(biased, experts, times):
  """The biased probabilities after the bias has moved so many times."""
  for _ in range(times):
    biased = biased + shift(biased, experts)[None]
  return biased


# A router at its start tells classes apart by 1e-4, a trained one by 1.
@pytest.mark.parametrize('scale', [1e-3, 0.1, 1.0])
@pytest.mark.parametrize('experts, skip', [(2, False), (16, True), (64, True)])
def test_shift_spreads_tokens_at_any_scale(experts, skip, scale):
  biased = uneven(experts, scale, tokens=1024, skip=skip)
  assert shares(biased, experts).max() > 1.5
  # Of 64 experts whose probabilities are far apart the last one comes slowly.
  found = shares(after(biased, experts, 20), experts)
  np.testing.assert_allclose(found, 1, atol=max(0.1, experts / 200))


def test_shift_of_two_experts_is_the_median():
  # Of two, expert 0 must fall by the median of its margin over expert 1.
  p = np.random.default_rng(0).uniform(0.2, 1, (1000, 1))
  found = shift(jnp.asarray(np.concatenate([p, 1 - p], axis=1)), 2)
  median = np.median(2 * p - 1)
  np.testing.assert_allclose(found, [-median / 2, median / 2], rtol=1e-5)


def test_shift_of_an_even_load_is_small_and_has_no_mean():
  biased = uneven(16)
  first = shift(biased, 16)
  last = shift(after(biased, 16, 8), 16)
  assert np.abs(last).max() < 0.02 * np.abs(first).max()
  np.testing.assert_allclose(np.sum(first), 0, atol=1e-5)


def test_tokens_that_do_not_count_move_nothing():
  real = np.arange(2048)[:, None] % 3 > 0
  biased = jnp.where(real, uneven(4, skip=True), -jnp.inf)
  only = uneven(4, skip=True)[real[:, 0]]
  found = shift(biased, 4)
  np.testing.assert_array_equal(found, shift(only, 4))
  assert not np.any(shift(jnp.full((9, 5), -jnp.inf), 4))


@pytest.mark.parametrize('skip', [False, True])
def test_one_expert_has_nothing_to_move(skip):
  assert not np.any(shift(uneven(1, skip=skip), 1))
