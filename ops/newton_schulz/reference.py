# SPDX-License-Identifier: Apache-2.0
"""The meaning of `ops.newton_schulz`, and its engine in plain XLA."""

import jax
import jax.numpy as jnp

# Coefficients of X <- aX + (bA + cA^2)X with A = X X^T (Jordan et al., 2024).
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
# Added to the Frobenius norm: a zero matrix stays zero.
EPS = 1e-7


def newton_schulz(x: jax.Array, *, steps: int, dtype: jnp.dtype) -> jax.Array:
  """See `ops.newton_schulz`."""
  wide = x.mT if x.shape[-2] > x.shape[-1] else x
  norm = jnp.linalg.norm(wide.astype(jnp.float32), axis=(-2, -1), keepdims=True)
  y = (wide / (norm + EPS)).astype(dtype)
  y = jax.lax.fori_loop(0, steps, lambda _, y: _iterate(y), y).astype(x.dtype)
  return y.mT if x.shape[-2] > x.shape[-1] else y


def _iterate(x: jax.Array) -> jax.Array:
  a, b, c = COEFFICIENTS
  gram = _matmul(x, x.mT)
  return a * x + _matmul(b * gram + c * _matmul(gram, gram), x)


def _matmul(a, b):
  out = jnp.matmul(a, b, preferred_element_type=jnp.float32)
  return out.astype(a.dtype)
