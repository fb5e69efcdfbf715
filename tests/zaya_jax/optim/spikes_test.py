# SPDX-License-Identifier: Apache-2.0
"""Spikes: the limit by NumPy, and what training looks like without any."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from zaya_jax.optim import spikes

LIMIT = 20.0
RNG = np.random.default_rng(0)


@functools.partial(jax.jit, static_argnums=2)
def is_spike(recent, now, limit=LIMIT):
  return spikes.is_spike(recent, now, limit)


remember = jax.jit(spikes.remember)


def window(losses, norms):
  recent = spikes.init()
  for now in zip(losses, norms, strict=True):
    recent = remember(recent, jnp.float32(now))
  return recent


def expected_limits(losses, norms):
  """Of the last 32, in float64; the upper of two medians."""
  limits = []
  for values, least in ((losses, 0.1), (norms, 0.5 * np.sort(norms)[16])):
    median = np.sort(values)[16]
    far = np.sort(np.abs(values - median))[16]
    limits.append(median + LIMIT * max(far, least))
  return limits


@pytest.mark.parametrize('noise', [0.01, 0.5])
def test_limit_is_that_of_numpy(noise):
  losses = 3 + noise * RNG.normal(size=40)
  norms = np.exp(2 * noise * RNG.normal(size=40))
  recent = window(losses, norms)
  loss, norm = expected_limits(losses[-32:], norms[-32:])
  for now, expected in (
    ((0.999 * loss, 0.999 * norm), False),
    ((1.001 * loss, 0.5), True),
    ((2.0, 1.001 * norm), True),
  ):
    assert is_spike(recent, jnp.float32(now)) == expected


def test_nothing_is_refused_before_half_of_the_window_is_known():
  wild = jnp.float32([1e6, 1e6])
  for known in range(30):
    recent = window(np.full(known, 3.0), np.full(known, 1.0))
    assert is_spike(recent, wild) == (known > spikes.WINDOW // 2)


def test_limit_zero_refuses_nothing():
  recent = window(np.full(40, 3.0), np.full(40, 1.0))
  assert not is_spike(recent, jnp.float32([1e6, 1e6]), 0.0)


def test_nan_is_not_remembered_and_a_spike_moves_the_limit_little():
  recent = window(np.full(40, 3.0), np.full(40, 1.0))
  kept = remember(recent, jnp.float32([np.nan, 1.0]))
  np.testing.assert_array_equal(kept, recent)
  spiked = remember(recent, jnp.float32([9.0, 1e6]))
  assert is_spike(spiked, jnp.float32([5.1, 1.0]))
  assert not is_spike(spiked, jnp.float32([4.9, 1.0]))


def test_what_lasts_is_no_spike():
  recent, refused = window(np.full(40, 3.0), np.full(40, 1.0)), 0
  for _ in range(40):
    refused += bool(is_spike(recent, jnp.float32([3.0, 50.0])))
    recent = remember(recent, jnp.float32([3.0, 50.0]))
  assert refused == spikes.WINDOW // 2


def test_learning_fast_with_a_lognormal_norm_is_not_refused():
  # 20,000 steps: a loss that falls from 11 to 2, and norms of which one in a
  # thousand is five times the median.
  steps = np.arange(20_000)
  losses = 2 + 9 * np.exp(-steps / 300) + 0.1 * RNG.normal(size=steps.size)
  norms = np.exp(0.5 * RNG.normal(size=steps.size)) * (
    1 + 4 * np.exp(-steps / 9)
  )
  now = jnp.float32(np.stack([losses, norms], axis=1))

  def step(recent, now_2):
    spike = spikes.is_spike(recent, now_2, LIMIT)
    return spikes.remember(recent, now_2), spike

  _, refused = jax.lax.scan(step, spikes.init(), now)
  assert not refused.sum()
