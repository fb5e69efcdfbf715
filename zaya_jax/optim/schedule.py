# SPDX-License-Identifier: Apache-2.0
"""The learning rate: over the steps of a run, or the tokens of a recipe.

Both are computed alike, to the last bit: a plain run may become the first phase
of a recipe.
"""

import math

import jax
import jax.numpy as jnp
import optax

from zaya_jax import config as config_lib
from zaya_jax.config import training
from zaya_jax.config.recipe import segments


def make_schedule(
  config: config_lib.OptimConfig, num_steps: int
) -> optax.Schedule:
  """Linear warmup, then cosine, warmup-stable-decay or constant.

  Of W warmup steps the first has peak / W and the last the peak.

  Args:
    config: peak, final value, shape and lengths in steps.
    num_steps: steps of the run, and of its schedule if `config` names none.

  Returns:
    A function of the number of steps done; after the schedule its last value.
  """
  parts, first = [], 0
  for rate in config.rates(num_steps):
    parts.append((first, _in_steps(rate, 1, first_step=first)))
    first += rate.tokens

  def at(step):
    found = parts[0][1](step)
    for first, later in parts[1:]:
      found = jnp.where(step < first, found, later(step))
    return found

  return at


def of_segment(segment: segments.Segment) -> optax.Schedule:
  """The rate of a recipe: a function of the tokens before a step.

  Args:
    segment: of a recipe, with the phase's `rate`.

  Returns:
    A function of the number of steps that the run has done, refused ones too.
  """
  assert segment.rate
  return _in_steps(
    segment.rate,
    segment.batch_size * segment.seq_len,
    first_step=segment.first_step,
    first_token=segment.phase_token,
  )


def _in_steps(
  rate: training.Rate, per_step: int, *, first_step: int, first_token: int = 0
) -> optax.Schedule:
  """A rate as a function of steps.

  Tokens do not fit into 32 bits. What is computed on a device is their share of
  the phase, from its steps: exact to 4e-7 of the highest rate.

  Args:
    rate: of a phase.
    per_step: tokens of a step.
    first_step: steps before the first one.
    first_token: tokens of the phase before that step.
  """
  rest = max(1, rate.tokens - rate.warmup)

  def at(step):
    steps = jnp.asarray(step - first_step, jnp.float32)
    share = lambda of, start: (
      (first_token - start) / of + _product(steps, per_step / of)
    )
    done = jnp.clip(share(rest, rate.warmup), 0.0, 1.0)
    found = jnp.float32(rate.start)
    if rate.shape == 'linear':
      found = rate.start + _product(done, rate.end - rate.start)
    elif rate.shape == 'cosine':
      left = (1 + jnp.cos(_product(done, math.pi))) / 2
      found = rate.end + _product(left, rate.start - rate.end)
    if rate.warmup:
      ramp = share(rate.warmup, -rate.ahead)
      before = rate.before + _product(ramp, rate.start - rate.before)
      found = jnp.where(ramp < 1, before, found)
    return jnp.maximum(found, 0.0)  # Rounded, an end at 0 may be below.

  return at


def _product(a: jax.Array, b: float) -> jax.Array:
  """A product to 23 bits, rounded by itself.

  Whether a compiler rounds a product before it adds depends on what is around.
  """
  return jax.lax.reduce_precision(a * b, exponent_bits=8, mantissa_bits=22)
