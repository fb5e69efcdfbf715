# SPDX-License-Identifier: Apache-2.0
"""The meaning of `ops.linear_cross_entropy`: all logits at once."""

import jax
import jax.numpy as jnp


def linear_cross_entropy(x_TD, head_VD, target_T, weight_T, bias_V=None):
  """See `ops.linear_cross_entropy`."""
  logits_TV = jnp.einsum(
    'TD,VD->TV',
    x_TD,
    head_VD,
    preferred_element_type=jnp.promote_types(x_TD.dtype, jnp.float32),
  )
  if bias_V is not None:
    logits_TV += bias_V[None]
  picked_T = jnp.take_along_axis(logits_TV, target_T[:, None], axis=1)[:, 0]
  nats_T = jax.nn.logsumexp(logits_TV, axis=1) - picked_T
  return jnp.sum(nats_T * weight_T)
