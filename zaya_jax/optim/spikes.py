# SPDX-License-Identifier: Apache-2.0
"""Which steps jump: a loss or a gradient norm far above those before it.

Median and median absolute deviation of the last steps say how far is far; one
wild step among them moves neither. Both are of `WINDOW` numbers: no cost. The
same of fewer steps lets a run go on at a new level before it is given up.
"""

import jax
import jax.numpy as jnp

WINDOW = 32
# The deviation counts as at least this much, in nats of the loss and as a share
# of the median gradient norm: quiet training is not to make the limit narrow.
_LEAST_NATS, _LEAST_SHARE = 0.1, 0.5


def init() -> jax.Array:
  """Nothing is known yet: [2, WINDOW] float32 zeros."""
  return jnp.zeros((2, WINDOW), jnp.float32)


def is_spike(
  recent_2W: jax.Array, now_2: jax.Array, limit: float, max_refused: int
) -> jax.Array:
  """Whether a step is to be refused.

  Args:
    recent_2W: loss and gradient norm of the last steps; 0: not known.
    now_2: those of this step, float32.
    limit: deviations above the median that are too many; 0: none are.
    max_refused: refusals in a row that end a run. What lasts for half as many
      steps is a new level, and no spike.

  Returns:
    A bool scalar; False until more than half of the window is known.
  """
  if not limit:
    return jnp.bool_(False)
  known = jnp.where(recent_2W > 0, recent_2W, jnp.inf)
  newest = (min(max_refused, WINDOW) - 1) | 1  # Odd: it has a majority.
  limits = [_limit(known, limit), _limit(known[:, -newest:], limit)]
  return jnp.any(now_2 > jnp.maximum(*limits))


def _limit(known, limit):
  """The largest loss and gradient norm that are no spike after these."""
  middle = known.shape[1] // 2
  median_2 = jnp.sort(known, axis=1)[:, middle]
  far = jnp.sort(jnp.abs(known - median_2[:, None]), axis=1)[:, middle]
  least_2 = jnp.stack([jnp.float32(_LEAST_NATS), _LEAST_SHARE * median_2[1]])
  # Where the median is infinite this is NaN, and nothing is above NaN.
  return median_2 + limit * jnp.maximum(far, least_2)


def remember(recent_2W: jax.Array, now_2: jax.Array) -> jax.Array:
  """The window after one more step.

  Also one that was refused, unless it is NaN or Inf: what lasts is no spike.
  """
  moved = jnp.concatenate([recent_2W[:, 1:], now_2[:, None]], axis=1)
  return jnp.where(jnp.all(jnp.isfinite(now_2)), moved, recent_2W)
