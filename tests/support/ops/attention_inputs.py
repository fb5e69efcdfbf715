# SPDX-License-Identifier: Apache-2.0
"""Inputs of attention, for tests of its engines."""

import jax
import jax.numpy as jnp
import numpy as np


def draw(length, heads=(4, 2), channels=16, dtype=jnp.float32, batch=1):
  rng = np.random.default_rng(0)
  shapes = [(batch, length, heads[i], channels) for i in (0, 1, 1, 0)]
  # By `jnp.asarray` jax would compile a cast for each shape.
  return [jax.device_put(rng.normal(size=s).astype(dtype)) for s in shapes]


def gradients(function, q, k, v, d_out):
  out, vjp = jax.vjp(function, q, k, v)
  return out, vjp(d_out)


def both(segments):
  return {'q_segments_BL': segments, 'k_segments_BS': segments}
