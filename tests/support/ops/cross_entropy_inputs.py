# SPDX-License-Identifier: Apache-2.0
"""Inputs of cross-entropy, for tests of its engines."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

import ops
from ops import dispatch
from ops.cross_entropy import reference
from tests.support import close

T, D, V = 12, 5, 7


def arguments(dtype=jnp.float32):
  """Hidden states, head, bias, targets, weights."""
  keys = jax.random.split(jax.random.key(0), 5)
  x = 3 * jax.random.normal(keys[0], (T, D))
  head = jax.random.normal(keys[1], (V, D))
  bias = jax.random.normal(keys[2], (V,))
  target = jax.random.randint(keys[3], (T,), 0, V).at[0].set(V - 1)
  weight = jax.random.uniform(keys[4], (T,)).at[jnp.array([1, 8])].set(0.0)
  return x.astype(dtype), head.astype(dtype), bias, target, weight


def value_and_gradients(function, x, head, bias, target, weight):
  """Of 2.5 times the loss, by what has a gradient."""
  if function is reference.linear_cross_entropy:
    run = _reference(bias is not None)
  else:
    run = _program(function, bias is not None)
  return run(x, head, bias, target, weight)


def _program(function, with_bias):
  run = lambda x, head, bias, *rest: 2.5 * function(x, head, *rest, bias)
  return jax.jit(jax.value_and_grad(run, (0, 1, 2) if with_bias else (0, 1)))


# Engines are traced anew: a test may have changed them.
_reference = functools.cache(
  functools.partial(_program, reference.linear_cross_entropy)
)


_TARGET = 7  # Of token 0.
# Where NaN comes from: x [40, 64], head [320, 64]; token 3 has no weight.
POISON = {
  'column of logits': lambda x, head: (x, head.at[200].set(jnp.nan)),
  'target of a token': lambda x, head: (x, head.at[_TARGET].set(jnp.nan)),
  'number of the head': lambda x, head: (x, head.at[200, 5].set(jnp.nan)),
  'row of x': lambda x, head: (x.at[17].set(jnp.nan), head),
  'row without weight': lambda x, head: (x.at[3].set(jnp.nan), head),
}


def assert_nan_as_the_reference(engine, name, scale=1):
  """Loss and gradients are NaN in the same places, and right elsewhere."""
  rng = np.random.default_rng(0)
  draw = lambda *shape: jnp.asarray(rng.standard_normal(shape), jnp.bfloat16)
  x, head = POISON[name](scale * draw(40, 64), draw(320, 64))
  target = jnp.asarray(rng.integers(0, 320, 40), jnp.int32).at[0].set(_TARGET)
  weight = jnp.asarray(rng.random(40), jnp.float32).at[3].set(0)
  given = (x, head, None, target, weight)
  wanted = value_and_gradients(reference.linear_cross_entropy, *given)
  with dispatch.use(cross_entropy=engine):
    found = value_and_gradients(ops.linear_cross_entropy, *given)
  for a, b in zip(*map(jax.tree.leaves, (found, wanted)), strict=True):
    a, b = np.asarray(a, np.float32), np.asarray(b, np.float32)
    assert np.isnan(b).any()
    np.testing.assert_array_equal(np.isnan(a), np.isnan(b))
    close.assert_close(np.nan_to_num(a), np.nan_to_num(b), close.BFLOAT16)
