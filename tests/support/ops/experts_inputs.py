# SPDX-License-Identifier: Apache-2.0
"""Tokens, their experts and matrices, for tests of the engines."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

D, F = 6, 10


def drawn(num_tokens, num_experts, low=0, high=None):
  """Random choices in [low, high), by default of every class but skip."""
  rng = np.random.default_rng(num_tokens)
  return rng.integers(low, high or num_experts, num_tokens)


# Name -> choices and E. A block has 16 rows for 37 tokens and 4 experts, 128
# for 300 and 2: the sizes are no multiples of it.
CASES = {
  'uneven': (drawn(37, 4), 4),
  'some_skipped': (drawn(37, 4, high=5), 4),
  'empty_experts': (drawn(37, 4, low=1, high=3), 4),
  'all_to_the_first': (np.full(37, 0), 4),
  'all_to_the_last': (np.full(37, 3), 4),
  'all_skipped': (np.full(37, 4), 4),
  'full_blocks': (np.repeat([3, 1, 0, 2], 16), 4),
  'several_large_blocks': (drawn(300, 2, high=3), 2),
  'one_expert': (drawn(9, 1, high=2), 1),
  'one_token': (np.array([2]), 4),
  'one_token_skipped': (np.array([4]), 4),
}


@functools.partial(jax.jit, static_argnums=0)
def value_and_gradients(function, arrays, choice, d_out):
  x, gate_up, down = arrays
  out, vjp = jax.vjp(lambda *a: function(a[0], choice, *a[1:]), *arrays)
  return out, vjp(d_out)


def arguments(choice, num_experts, dtype=jnp.float32):
  """Of NumPy: jax would compile each shape."""
  rng = np.random.default_rng(len(choice))
  shapes = [
    (len(choice), D),
    (num_experts, D, 2 * F),
    (num_experts, F, D),
    (len(choice), D),
  ]
  x, gate_up, down, d_out = (
    jax.device_put(rng.normal(size=s).astype(dtype)) for s in shapes
  )
  return (x, gate_up, down), jnp.asarray(choice, jnp.int32), d_out
