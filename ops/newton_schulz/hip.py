# SPDX-License-Identifier: Apache-2.0
"""Newton-Schulz with symmetric products in HIP, for MI300X.

The rest is that of `api`: the last product of a step is XLA's.
"""

import jax
import jax.numpy as jnp
import numpy as np

from ops import native
from ops.newton_schulz import api


def unsupported(x: jax.Array, *, dtype: jnp.dtype, **_) -> str | None:
  """Why it cannot run."""
  del x
  return native.unavailable('symmetric_matmul') or api.not_half(dtype)


def newton_schulz(x: jax.Array, **options) -> jax.Array:
  """See `ops.newton_schulz`."""
  return api.newton_schulz(x, symmetric_matmul, lambda *_: (8, 8), **options)


def symmetric_matmul(
  a, b, c=None, scale=None, *, alpha=1.0, beta=0.0, diagonal=0.0
):
  """See `triton.symmetric_matmul`; K is a multiple of 8."""
  if scale is None:
    scale = jnp.ones(a.shape[:-2], jnp.float32)
  return native.call(
    'symmetric_matmul',
    jax.ShapeDtypeStruct((*a.shape[:-1], a.shape[-2]), a.dtype),
    a,
    b,
    a if c is None else c,
    scale,
    alpha=np.float32(alpha),
    beta=np.float32(0 if c is None else beta),
    diagonal=np.float32(diagonal),
  )
