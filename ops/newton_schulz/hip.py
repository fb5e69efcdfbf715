# SPDX-License-Identifier: Apache-2.0
"""Newton-Schulz with symmetric products in HIP, for MI300X.

The rest is that of pallas.py: the last product of a step is XLA's.
"""

import jax
import jax.numpy as jnp
import numpy as np

from ops import native
from ops.newton_schulz import pallas


def unsupported(x: jax.Array, *, dtype: jnp.dtype, **_) -> str | None:
  """Why it cannot run."""
  if reason := native.unavailable('symmetric_matmul'):
    return reason
  if jnp.dtype(dtype).name not in ('bfloat16', 'float16'):
    return f'iterates in bfloat16 or float16, not {dtype}'
  return None


def newton_schulz(x: jax.Array, **options) -> jax.Array:
  """See `ops.newton_schulz`."""
  return pallas.newton_schulz(
    x, **options, product=symmetric_matmul, multiple=8
  )


def symmetric_matmul(
  a: jax.Array,
  b: jax.Array,
  c: jax.Array | None = None,
  *,
  alpha: float = 1.0,
  beta: float = 0.0,
  diagonal: float = 0.0,
) -> jax.Array:
  """`alpha a b^T + beta c + diagonal I`, where a b^T and c are symmetric.

  Args:
    a: [..., n, k] bfloat16 or float16, k a multiple of 8.
    b: like `a`.
    c: [..., n, n] in that type.
    alpha: factor.
    beta: factor.
    diagonal: added to the diagonal.

  Returns:
    [..., n, n] in that type, symmetric to the last bit.
  """
  return native.call(
    'symmetric_matmul',
    jax.ShapeDtypeStruct((*a.shape[:-1], a.shape[-2]), a.dtype),
    a,
    b,
    a if c is None else c,
    alpha=np.float32(alpha),
    beta=np.float32(0 if c is None else beta),
    diagonal=np.float32(diagonal),
  )
