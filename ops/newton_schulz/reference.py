# SPDX-License-Identifier: Apache-2.0
"""The meaning of `ops.newton_schulz`, and its engine in plain XLA."""

import jax
import jax.numpy as jnp
import numpy as np

from ops.newton_schulz import coefficients as coefficients_lib
from ops.newton_schulz import gram as gram_lib

# Added to the Frobenius norm: a zero matrix stays zero.
EPS = 1e-7


def newton_schulz(
  x, *, steps, dtype, coefficients='jordan', gram=False
) -> jax.Array:
  """See `ops.newton_schulz`."""
  schedule = coefficients_lib.schedule(coefficients, steps)
  y, tall = wide(x)
  y = normalize(y, dtype)
  if gram and y.shape[-1] >= gram_lib.ASPECT * y.shape[-2]:
    y = gram_lib.iterate(y, schedule, _symmetric, _matmul)
  else:
    exact = jnp.promote_types(dtype, jnp.float32)
    table = jnp.asarray(np.reshape(schedule, (-1, 3)), exact)
    y, _ = jax.lax.scan(lambda y, abc: (_iterate(y, abc), None), y, table)
  y = y.astype(x.dtype)
  return y.mT if tall else y


def normalize(x: jax.Array, dtype: jnp.dtype) -> jax.Array:
  """X / ||X|| in `dtype`.

  The norm and the quotient are at least float32: float16 holds neither the
  squares of large elements nor a norm beyond 65,504, but every quotient.
  """
  return (_exact(x) / norm(x)).astype(dtype)


def norm(x: jax.Array) -> jax.Array:
  """The Frobenius norm of each matrix, [..., 1, 1], and `EPS`."""
  return jnp.linalg.norm(_exact(x), axis=(-2, -1), keepdims=True) + EPS


def wide(x: jax.Array) -> tuple[jax.Array, bool]:
  """X with no more rows than columns, and whether it was turned for that."""
  tall = x.shape[-2] > x.shape[-1]
  return x.mT if tall else x, tall


def _exact(x):
  return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def _iterate(x, abc):
  a, b, c = abc
  gram = _matmul(x, x.mT)
  factor = (b * gram + c * _matmul(gram, gram)).astype(x.dtype)
  return (a * x + _matmul(factor, x)).astype(x.dtype)


def _symmetric(a, b, c=None, scale=None, *, alpha=1.0, beta=0.0, diagonal=0.0):
  assert scale is None  # X is normalized in a pass of its own.
  out = alpha * _accumulate(a, b.mT)
  if c is not None:
    out += beta * c.astype(out.dtype)
  if diagonal:
    eye = jnp.eye(out.shape[-1], dtype=out.dtype)
    out += diagonal * jnp.broadcast_to(eye, out.shape)
  return out.astype(a.dtype)


def _matmul(a, b):
  return _accumulate(a, b).astype(a.dtype)


def _accumulate(a, b):
  wide = jnp.promote_types(a.dtype, jnp.float32)
  return jnp.matmul(a, b, preferred_element_type=wide)
