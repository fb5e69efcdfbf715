# SPDX-License-Identifier: Apache-2.0
"""The next token from logits: the likeliest one, or a sample."""

import jax
import jax.numpy as jnp


def choose(
  logits_BV: jax.Array,
  key: jax.Array,
  *,
  temperature: jax.Array | None = None,
  top_p: jax.Array | None = None,
) -> jax.Array:
  """[B] int32 sampled tokens; at temperature 0 or None the likeliest."""
  likeliest_B = jnp.argmax(logits_BV, axis=-1).astype(jnp.int32)
  if temperature is None:
    return likeliest_B
  scaled_BV = logits_BV / jnp.maximum(temperature, 1e-6)
  if top_p is not None:
    scaled_BV = _keep_likeliest(scaled_BV, top_p)
  sampled_B = jax.random.categorical(key, scaled_BV, axis=-1).astype(jnp.int32)
  return jnp.where(temperature > 0, sampled_B, likeliest_B)


def _keep_likeliest(scaled_BV, top_p):
  """-inf for all but the likeliest tokens of total probability `top_p`."""
  probs_BV = jax.nn.softmax(scaled_BV, axis=-1)
  sorted_BV = -jnp.sort(-probs_BV, axis=-1)
  before_BV = jnp.cumsum(sorted_BV, axis=-1) - sorted_BV
  # The least probability that is still needed to reach top_p.
  kept_BV = jnp.where(before_BV < top_p, sorted_BV, 2.0)
  least_B1 = jnp.min(kept_BV, axis=-1, keepdims=True)
  least_B1 = jnp.minimum(least_B1, sorted_BV[:, :1])
  return jnp.where(probs_BV >= least_B1, scaled_BV, -jnp.inf)
