# SPDX-License-Identifier: Apache-2.0
"""Spikes: the limit by NumPy, and what training looks like without any."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from zaya_jax.optim import spikes

LIMIT, REFUSED = 20.0, 10
RNG = np.random.default_rng(0)


@functools.partial(jax.jit, static_argnums=(2, 3))
def is_spike(recent, now, limit=LIMIT, max_refused=REFUSED):
  return spikes.is_spike(recent, now, limit, max_refused)


remember = jax.jit(spikes.remember)


def window(losses, norms):
  recent = spikes.init()
  for now in zip(losses, norms, strict=True):
    recent = remember(recent, jnp.float32(now))
  return recent


def expected_limits(losses, norms):
  """In float64, the larger of those of the last 32 and of the last 9 steps."""
  middle = lambda values: np.sort(values)[len(values) // 2]
  limits = []
  for count in (32, 9):
    for values, nats, share in ((losses, 0.1, 0), (norms, 0, 0.5)):
      last = values[-count:]
      far = middle(np.abs(last - middle(last)))
      far = max(far, nats, share * middle(last))
      limits.append(middle(last) + LIMIT * far)
  return np.max(np.reshape(limits, (2, 2)), axis=0)


@pytest.mark.parametrize('noise', [0.01, 0.5])
def test_limit_is_that_of_numpy(noise):
  losses = 3 + noise * RNG.normal(size=40)
  norms = np.exp(2 * noise * RNG.normal(size=40))
  recent = window(losses, norms)
  loss, norm = expected_limits(losses, norms)
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


# The median of the last 9 steps (10, and an odd number of them) is new when 5
# are; of the whole window at the latest.
@pytest.mark.parametrize(
  'max_refused, expected',
  [(1, 1), (2, 1), (3, 2), (4, 2), (9, 5), (10, 5), (32, 16), (1000, 16)],
)
@pytest.mark.parametrize('level', [(3.0, 50.0), (9.0, 1.0)])
def test_what_lasts_is_no_spike(max_refused, expected, level):
  recent, refused = window(np.full(40, 3.0), np.full(40, 1.0)), []
  for _ in range(40):
    now = jnp.float32(level)
    refused.append(bool(is_spike(recent, now, max_refused=max_refused)))
    recent = remember(recent, now)
  assert refused == [True] * expected + [False] * (40 - expected)
  assert max_refused == 1 or expected < max_refused


def test_fewer_spikes_than_half_are_no_level():
  recent = window(np.full(40, 3.0), np.full(40, 1.0))
  for wild in 2 * [True, False]:
    now = jnp.float32([9.0, 1.0] if wild else [3.0, 1.0])
    assert is_spike(recent, now) == wild
    recent = remember(recent, now)
  for _ in range(2):  # The third and fourth of nine.
    assert is_spike(recent, jnp.float32([9.0, 1.0]))
    recent = remember(recent, jnp.float32([9.0, 1.0]))


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
    spike = spikes.is_spike(recent, now_2, LIMIT, REFUSED)
    return spikes.remember(recent, now_2), spike

  _, refused = jax.lax.scan(step, spikes.init(), now)
  assert not refused.sum()
