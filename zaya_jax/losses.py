# SPDX-License-Identifier: Apache-2.0
"""The next-token loss, never holding all logits of a batch."""

import jax
import jax.numpy as jnp

import ops
from zaya_jax import mesh
from zaya_jax.model import zaya


def next_token(
  model: zaya.Zaya, batch: dict[str, jax.Array]
) -> tuple[jax.Array, jax.Array]:
  """Sum of weighted next-token losses of a batch.

  Args:
    model: the network.
    batch: tokens, targets, segment_ids, positions [B, L] int32 and weights
      [B, L] float32, 0 where a target does not count.

  Returns:
    Scalar float32 in nats, and the load of the router [N, X] float32.
  """
  out = model.features(
    batch['tokens'],
    segment_ids=batch['segment_ids'],
    positions=batch['positions'],
  )
  bias = model.head_vector()
  rows = ('batch', None)

  def local(x_BLD, head_VD, targets_BL, weights_BL, *bias):
    return ops.linear_cross_entropy(
      x_BLD.reshape(-1, x_BLD.shape[-1]),
      head_VD,
      targets_BL.reshape(-1),
      weights_BL.reshape(-1),
      *bias,
    )

  biases = () if bias is None else (bias,)
  nats = mesh.per_device(
    local,
    in_axes=[(*rows, None), (None, None), rows, rows] + [(None,)] * len(biases),
    out_axes='sum',
  )(
    out.x,
    model.head_matrix(out.x.dtype),
    batch['targets'],
    batch['weights'].astype(jnp.float32),
    *biases,
  )
  return nats, out.load
