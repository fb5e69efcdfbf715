# SPDX-License-Identifier: Apache-2.0
"""What the parts of the router's matrices are, in jax.numpy."""

import jax
import jax.numpy as jnp

from ops.router import api, two_parts


def weights(inputs):
  """See `api.Kernels`."""
  r, x = inputs.out.shape
  fc1 = inputs.norm[:, None] * inputs.fc1
  out = jnp.pad(inputs.out, ((0, 0), (0, api.classes(x) - x)))
  fc1_parts, fc1_power, fc1_top = exact_parts(fc1)
  fc2_parts, fc2_power, _ = exact_parts(inputs.fc2)
  out_parts, out_power, _ = exact_parts(out)
  bound = r * fc1_top + jnp.max(jnp.abs(inputs.fc1_bias))
  a1_power = 15 - api.exponent(bound)
  factors = [
    api.power_of_two(-api.unit_power(r) - fc1_power),
    api.power_of_two(a1_power),
    api.power_of_two(-a1_power),
    api.power_of_two(-fc2_power),
    api.power_of_two(-out_power),
  ]
  stacked = lambda w: jnp.stack(two_parts.parts(w.T))
  return api.Weights(
    jnp.concatenate(two_parts.parts(inputs.down), axis=1),
    *(fc1_parts, fc2_parts, out_parts, jnp.stack(factors)),
    two_parts.back_matrix(inputs.down),
    *(stacked(fc1), stacked(inputs.fc2), stacked(out)),
  )


def exact_parts(w):
  """[2, ...] float16 of `w` times 2 to a power, the power, and max |w|."""
  top = jnp.max(jnp.abs(w))
  power = 15 - api.exponent(top)
  scaled = w * api.power_of_two(power)
  high = scaled.astype(jnp.float16)
  # Or XLA may take it that rounding there and back leaves what was.
  rounded = jax.lax.reduce_precision(scaled, exponent_bits=5, mantissa_bits=10)
  return jnp.stack([high, (scaled - rounded).astype(jnp.float16)]), power, top
