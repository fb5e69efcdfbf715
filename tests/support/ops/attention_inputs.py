# SPDX-License-Identifier: Apache-2.0
"""Inputs of attention, for tests of its engines."""

import jax
import jax.numpy as jnp
import numpy as np


def draw(length, heads=(4, 2), channels=16, dtype=jnp.float32, batch=1):
  rng = np.random.default_rng(0)
  shapes = [(batch, length, heads[i], channels) for i in (0, 1, 1, 0)]
  return [jnp.asarray(rng.standard_normal(s), dtype) for s in shapes]


def gradients(function, q, k, v, d_out):
  out, vjp = jax.vjp(function, q, k, v)
  return out, vjp(d_out)


def both(segments):
  return {'q_segments_BL': segments, 'k_segments_BS': segments}
