# SPDX-License-Identifier: Apache-2.0
"""Inputs of cross-entropy, for tests of its engines."""

import jax
import jax.numpy as jnp

T, D, V = 12, 5, 7


def arguments(dtype=jnp.float32):
  keys = jax.random.split(jax.random.key(0), 5)
  x = 3 * jax.random.normal(keys[0], (T, D))
  head = jax.random.normal(keys[1], (V, D))
  bias = jax.random.normal(keys[2], (V,))
  target = jax.random.randint(keys[3], (T,), 0, V).at[0].set(V - 1)
  weight = jax.random.uniform(keys[4], (T,)).at[jnp.array([1, 8])].set(0.0)
  return x.astype(dtype), head.astype(dtype), bias, target, weight


def value_and_gradients(function, x, head, bias, target, weight):
  run = lambda x, head, bias: 2.5 * function(x, head, target, weight, bias)
  wanted = (0, 1) if bias is None else (0, 1, 2)
  return jax.jit(jax.value_and_grad(run, wanted))(x, head, bias)
