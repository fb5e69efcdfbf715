# SPDX-License-Identifier: Apache-2.0
"""The learning rate over the steps of a run."""

import optax

from zaya_jax import config as config_lib


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
