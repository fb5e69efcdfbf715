# SPDX-License-Identifier: Apache-2.0
"""Gradients of the experts of several layers, written into one stack.

`benchmarks.memcheck` runs them under its tool, each engine with its kernels.
"""

import jax
import jax.numpy as jnp
import numpy as np

import ops
from ops.experts import sink

_LAYERS, _EXPERTS, _WIDTH, _TOKENS = 3, 4, 64, 300


def compare(add: bool) -> None:
  """Computes them, and beside them those that each layer's matrices get.

  Args:
    add: to what is in the stacks, float32; else over it, bfloat16.

  Raises:
    AssertionError: if they differ.
  """
  x_TD, choice_NT, matrices = _inputs()
  # Only sums in float32 are added to.
  dtype = jnp.float32 if add else jnp.bfloat16
  like = jax.tree.map(lambda a: a.astype(dtype), matrices)
  first = like if add else jax.tree.map(lambda a: a * jnp.nan, like)
  found = jax.jit(jax.grad(_into), static_argnums=4)(
    like, first, x_TD, (choice_NT, matrices), add
  )
  wanted = jax.jit(jax.grad(_apart))(matrices, x_TD, choice_NT)
  for got, want, before in zip(found, wanted, first, strict=True):
    want = want.astype(jnp.float32) + (before if add else 0)
    bound = 0.02 * float(jnp.abs(want).max())
    np.testing.assert_allclose(
      got.astype(jnp.float32), want, rtol=0, atol=bound
    )


def _inputs():
  rng = np.random.default_rng(0)
  draw = lambda *shape: jnp.asarray(
    rng.standard_normal(shape) / _WIDTH**0.5, jnp.bfloat16
  )
  choice_NT = rng.integers(0, _EXPERTS + 1, (_LAYERS, _TOKENS), np.int32)
  matrices = sink.Stacks(
    draw(_LAYERS, _EXPERTS, _WIDTH, 2 * _WIDTH),
    draw(_LAYERS, _EXPERTS, _WIDTH, _WIDTH),
  )
  return draw(_TOKENS, _WIDTH), jnp.asarray(choice_NT), matrices


def _apart(matrices, x_TD, choice_NT):
  for i in range(_LAYERS):
    x_TD += ops.expert_mlp(
      x_TD, choice_NT[i], matrices.gate_up[i], matrices.down[i]
    )
  return jnp.sum(x_TD.astype(jnp.float32) ** 2)


def _into(stacks, first, x_TD, layers, add):
  choice_NT, matrices = layers
  for i in range(_LAYERS):
    place = sink.Sink(stacks, jnp.asarray([i, add], jnp.int32))
    y_TD, stacks = ops.expert_mlp(
      *(x_TD, choice_NT[i], matrices.gate_up[i], matrices.down[i], place)
    )
    x_TD += y_TD
  return jnp.sum(sink.begin(x_TD, stacks, first).astype(jnp.float32) ** 2)
