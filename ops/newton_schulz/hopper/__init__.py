# SPDX-License-Identifier: Apache-2.0
"""Newton-Schulz with symmetric products for Hopper GPUs.

The rest is that of `api`: the last product of a step is XLA's.
"""

import jax
import jax.numpy as jnp

from ops.hopper import persistent, warp_groups
from ops.newton_schulz import api
from ops.newton_schulz.hopper import symmetric


def unsupported(x: jax.Array, *, dtype: jnp.dtype, **_) -> str | None:
  """Why it cannot run."""
  del x
  return warp_groups.unavailable() or api.not_half(dtype)


def newton_schulz(x: jax.Array, **options) -> jax.Array:
  """See `ops.newton_schulz`."""
  sides = (persistent.COLUMNS,) * 2
  return api.newton_schulz(
    x, symmetric.symmetric_matmul, lambda *_: sides, **options
  )
