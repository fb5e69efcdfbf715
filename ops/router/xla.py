# SPDX-License-Identifier: Apache-2.0
"""`ops.router` in plain XLA."""

import jax
import jax.numpy as jnp

from ops.once import once
from ops.router import reference, two_parts


def router(h_BLD, previous_BLR, down, down_bias, eda, norm, *rest, eps):
  """See `ops.router`."""
  inner = _exact
  if h_BLD.dtype == jnp.bfloat16:
    inner = two_parts.gradients_of
    own_BLR = two_parts.linear(h_BLD, down)
  else:
    own_BLR = _exact(h_BLD.astype(jnp.float32), down)
  own_BLR += down_bias[None, None]
  state_BLR = reference.mix(own_BLR, eda, previous_BLR)
  products = inner, inner, _exact
  return reference.behind(state_BLR, norm, *rest, eps=eps, products=products)


def _exact(x_BLD, w_DF):
  # By default CUDA multiplies float32 in TF32, whose 11 bits decide other
  # routes.
  exact = jax.lax.Precision.HIGHEST
  return once(jnp.einsum('BLD,DF->BLF', x_BLD, w_DF, precision=exact))
