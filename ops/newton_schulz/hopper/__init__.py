# SPDX-License-Identifier: Apache-2.0
"""Newton-Schulz with the symmetric products of `hopper`.

The rest is that of pallas.py: the last product of a step is XLA's.
"""

import jax
import jax.numpy as jnp

from ops import persistent, warp_groups
from ops.newton_schulz import hopper, pallas


def unsupported(x: jax.Array, *, dtype: jnp.dtype, **_) -> str | None:
  """Why it cannot run."""
  del x
  return warp_groups.unavailable() or pallas.not_half(dtype)


def newton_schulz(x: jax.Array, **options) -> jax.Array:
  """See `ops.newton_schulz`."""
  return pallas.newton_schulz(
    x,
    **options,
    product=hopper.symmetric_matmul,
    multiple=persistent.COLUMNS,
  )
