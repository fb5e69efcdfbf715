# SPDX-License-Identifier: Apache-2.0
"""Learning rates against closed forms."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from zaya_jax import config as config_lib
from zaya_jax.config import training
from zaya_jax.config.recipe import segments
from zaya_jax.optim import schedule

PEAK, FINAL, WARMUP, STEPS = 2e-3, 2e-4, 5, 25


def cosine(step):
  done = min(step - WARMUP, STEPS - WARMUP) / (STEPS - WARMUP)
  return FINAL + (PEAK - FINAL) * (1 + math.cos(math.pi * done)) / 2


def wsd(step):
  return PEAK + (FINAL - PEAK) * min(max(0, step - (STEPS - 8)), 8) / 8


SHAPES = {'cosine': cosine, 'wsd': wsd, 'constant': lambda step: PEAK}


def rates(steps, num_steps=STEPS, **changes):
  settings = {
    'lr': PEAK,
    'lr_final': FINAL,
    'warmup_steps': WARMUP,
    'decay_steps': 8,
  }
  config = config_lib.OptimConfig(**{**settings, **changes})
  found = schedule.make_schedule(config, num_steps)
  return [float(found(jnp.int32(step))) for step in steps]


@pytest.mark.parametrize('name', SHAPES)
def test_every_step_has_its_closed_form(name):
  steps = range(STEPS + 3)  # A step beyond the end keeps the last value.
  expected = [
    PEAK * (step + 1) / WARMUP if step < WARMUP else SHAPES[name](step)
    for step in steps
  ]
  np.testing.assert_allclose(rates(steps, schedule=name), expected, rtol=1e-5)


@pytest.mark.parametrize('name', SHAPES)
def test_without_warmup_the_first_step_has_the_peak(name):
  (first,) = rates([0], schedule=name, warmup_steps=0)
  np.testing.assert_allclose(first, PEAK, rtol=1e-6)


def test_warmup_of_one_step_has_the_peak():
  found = rates([0, 1], schedule='constant', warmup_steps=1)
  np.testing.assert_allclose(found, PEAK, rtol=1e-6)


@pytest.mark.parametrize('name', SHAPES)
def test_run_shorter_than_its_warmup_still_warms_up(name):
  found = rates(range(3), num_steps=3, schedule=name, warmup_steps=20)
  np.testing.assert_allclose(found, PEAK * np.array([1, 2, 3]) / 3, rtol=1e-5)


@pytest.mark.parametrize('num_steps', [1, 10 * STEPS])
@pytest.mark.parametrize('name', SHAPES)
def test_steps_of_the_schedule_win_over_those_of_the_run(name, num_steps):
  steps = [*range(STEPS + 1), 10 * STEPS]
  found = rates(steps, num_steps, schedule=name, schedule_steps=STEPS)
  assert found == rates(steps, schedule=name)
  assert found[-1] == pytest.approx(SHAPES[name](STEPS))  # It stays.


def test_decay_longer_than_the_run_starts_after_warmup():
  found = rates([WARMUP, STEPS], schedule='wsd', decay_steps=1000)
  np.testing.assert_allclose(found, [PEAK, FINAL], rtol=1e-5)


def test_rate_of_zero_is_allowed():
  assert rates([0, 10, STEPS], lr=0.0, lr_final=0.0) == [0, 0, 0]


@pytest.mark.parametrize('name', SHAPES)
def test_a_plain_run_has_the_rates_of_a_recipe_to_the_last_bit(name):
  settings = {'lr': 3e-3, 'lr_final': 1e-4, 'schedule': name}
  config = config_lib.OptimConfig(**settings, warmup_steps=7, decay_steps=9)
  steps, size = 45, 7 * 48  # A step of no round number of tokens.
  plain = jax.jit(schedule.make_schedule(config, steps))
  first = 0
  for rate in config.rates(steps, size):
    count = rate.tokens // size or 5
    segment = segments.Segment(
      rows=count * 7, steps=count, seq_len=48, batch_size=7, rate=rate,
      first_step=first,
    )  # fmt: skip
    recipe = jax.jit(schedule.of_segment(segment))
    for step in map(jnp.int32, range(first, first + count)):
      assert plain(step) == recipe(step), step
    first += count
  assert first == steps + 5 * (name != 'constant')


RATES = [
  training.Rate(
    before=0.0, start=6e-4, end=2e-4, shape='cosine', warmup=30 * 10**9,
    tokens=8 * 10**12,
  ),
  training.Rate(
    before=2e-4, start=2e-4, end=0.0, shape='linear', warmup=0,
    tokens=12 * 10**11,
  ),
  training.Rate(
    before=1e-2, start=3e-2, end=3e-2, shape='constant', warmup=999,
    tokens=5000,
  ),
]  # fmt: skip


@pytest.mark.parametrize('rate', RATES, ids=lambda rate: rate.shape)
@pytest.mark.parametrize('batch_size', [1024, 4096])
def test_rate_of_a_recipe_is_the_closed_form_in_tokens(rate, batch_size):
  """Whatever the batch, after 32-bit steps and beyond 32-bit tokens."""
  scale = rate.tokens / (8 * 10**12)
  seq_len = max(1, int(4096 * scale))
  size = batch_size * seq_len
  segment = segments.Segment(
    rows=0, steps=0, seq_len=seq_len, batch_size=batch_size, rate=rate,
    phase_token=17 * size, first_step=29_803, first_row=17 * batch_size,
  )  # fmt: skip
  found = jax.jit(schedule.of_segment(segment))
  # All of the phase, and the first step behind it.
  for step in np.linspace(0, rate.tokens / size - 17, 41).astype(int):
    tokens = (17 + int(step)) * size
    wanted = rate.at(tokens)
    got = found(jnp.int32(29_803 + step))
    assert float(got) == pytest.approx(wanted, abs=1e-9)
    row = segment.first_row + int(step) * batch_size
    assert segment.learning_rate(row) == wanted


def test_rate_of_a_recipe_sees_a_wrong_position():
  rate, size = RATES[0], 4096 * 4096
  segment = segments.Segment(
    rows=0, steps=0, seq_len=4096, batch_size=4096, rate=rate, first_step=1
  )
  got = schedule.of_segment(segment)(jnp.int32(100_000))
  assert abs(float(got) - rate.at(100_000 * size)) > 1e-10


def test_a_rate_of_zero_trains_nothing_to_the_end():
  config = config_lib.OptimConfig(lr=0.0, schedule='cosine', warmup_steps=5)
  rate = schedule.make_schedule(config, 100)
  assert {float(rate(step)) for step in range(120)} == {0.0}
