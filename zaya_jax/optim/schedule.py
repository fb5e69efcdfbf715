# SPDX-License-Identifier: Apache-2.0
"""The learning rate: over the steps of a run, or the tokens of a recipe."""

import jax.numpy as jnp
import optax

from zaya_jax import config as config_lib
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
  peak, final = config.lr, config.lr_final
  steps = config.schedule_steps or num_steps
  warmup = min(config.warmup_steps, steps)
  rest = max(1, steps - warmup)
  if config.schedule == 'constant':
    shapes, bounds = [optax.constant_schedule(peak)], []
  elif config.schedule == 'cosine':
    alpha = final / peak if peak else 0.0
    shapes, bounds = [optax.cosine_decay_schedule(peak, rest, alpha)], []
  else:
    decay = min(config.decay_steps, rest)
    shapes = [
      optax.constant_schedule(peak),
      optax.linear_schedule(peak, final, decay),
    ]
    bounds = [steps - decay]
  if warmup:
    # Step 0 already moves: the first update has 1/warmup of the peak.
    first = optax.linear_schedule(peak / warmup, peak, max(1, warmup - 1))
    shapes, bounds = [first, *shapes], [warmup, *bounds]
  return optax.join_schedules(shapes, bounds)


def of_segment(segment: segments.Segment) -> optax.Schedule:
  """The rate of a recipe: a function of the tokens before a step.

  Tokens do not fit into 32 bits. What is computed on a device is their share of
  the phase, from the steps of the segment: exact to 2e-7 of the rate.

  Args:
    segment: of a recipe, with the phase's `rate`.

  Returns:
    A function of the number of steps that the run has done, refused ones too.
  """
  rate, per_step = segment.rate, segment.batch_size * segment.seq_len
  assert rate
  rest = max(1, rate.tokens - rate.warmup)

  def at(step):
    steps = jnp.asarray(step - segment.first_step, jnp.float32)
    share = lambda of, start: (
      (segment.phase_token - start) / of + steps * (per_step / of)
    )
    done = jnp.clip(share(rest, rate.warmup), 0.0, 1.0)
    found = jnp.float32(rate.start)
    if rate.shape == 'linear':
      found = rate.start + (rate.end - rate.start) * done
    elif rate.shape == 'cosine':
      left = (1 + jnp.cos(jnp.pi * done)) / 2
      found = rate.end + (rate.start - rate.end) * left
    if rate.warmup:
      ramp = share(rate.warmup, 0)
      before = rate.before + (rate.start - rate.before) * ramp
      found = jnp.where(ramp < 1, before, found)
    return found

  return at
