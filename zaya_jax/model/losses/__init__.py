# SPDX-License-Identifier: Apache-2.0
"""The next-token loss, never holding all logits of a batch."""

import jax
import jax.numpy as jnp

import ops
from zaya_jax.model import router, working, zaya

_MAX_LOGITS = 2**26  # At once, in `log_probs`: 256 MiB.


def next_token(
  model: zaya.Zaya,
  batch: dict[str, jax.Array],
  context_mode: str = 'gather',
  sinks: working.Sinks | None = None,
  sample_every: int = 0,
  likely_of: int = 0,
) -> tuple[jax.Array, router.Load]:
  """Sum of weighted next-token losses of a batch, or of this device's part.

  Args:
    model: the network.
    batch: tokens, targets, segment_ids, positions [B, L] int32 and weights
      [B, L] float32, 0 where a target does not count.
    context_mode: of `Zaya.features`.
    sinks: likewise.
    sample_every: likewise.
    likely_of: likewise.

  Returns:
    Scalar float32 in nats, and the load of each layer.
  """
  out = model.features(
    batch['tokens'],
    segment_ids=batch['segment_ids'],
    positions=batch['positions'],
    context_mode=context_mode,
    sinks=sinks,
    sample_every=sample_every,
    likely_of=likely_of,
  )
  nats = ops.linear_cross_entropy(
    out.x.reshape(-1, out.x.shape[-1]),
    model.head_matrix(out.x.dtype),
    batch['targets'].reshape(-1),
    batch['weights'].reshape(-1).astype(jnp.float32),
    model.head_vector(),
  )
  return nats, out.load


def log_probs(
  model: zaya.Zaya,
  tokens_BL: jax.Array,
  index_BK: jax.Array,
  targets_BK: jax.Array,
) -> tuple[jax.Array, jax.Array]:
  """How likely some tokens are after some positions of each row.

  Args:
    model: the network.
    tokens_BL: [B, L] int32.
    index_BK: [B, K] int32, the positions.
    targets_BK: [B, K] int32, the tokens that may follow them.

  Returns:
    [B, K] float32 log-probabilities in nats, and [B, K] bool, whether no token
    is likelier. The logits of other positions are not computed, and never all.
  """
  x_BLD = model.features(tokens_BL).x
  head_VD, bias_V = model.head_matrix(x_BLD.dtype), model.head_vector()

  def one(x_and_target):
    x_D, target = x_and_target
    logits_V = jnp.dot(head_VD, x_D, preferred_element_type=jnp.float32)
    logits_V = logits_V if bias_V is None else logits_V + bias_V
    nats = logits_V[target] - jax.nn.logsumexp(logits_V)
    return nats, jnp.argmax(logits_V) == target

  x_BKD = jnp.take_along_axis(x_BLD, index_BK[..., None], axis=1)
  flat = (x_BKD.reshape(-1, x_BKD.shape[-1]), targets_BK.reshape(-1))
  chunk = max(1, _MAX_LOGITS // head_VD.shape[0])
  found = jax.lax.map(one, flat, batch_size=chunk)
  return tuple(a.reshape(index_BK.shape) for a in found)
