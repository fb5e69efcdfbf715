# SPDX-License-Identifier: Apache-2.0
"""Chunks whose logits are never written, for Hopper GPUs.

As in Triton the gradient of the logits lies in memory but for a factor of each
row, exp(z - shift) less the sum of that where the target is; here the product
of a chunk with the head writes it at once. The shift is the logit of
the target: the sum of a row is then the exponential of its loss. Where a loss
is too large for that, the chunk is made again, from the maximum of each row.
"""

import math

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from ops.cross_entropy import api
from ops.cross_entropy.hopper import exponentials
from ops.hopper import persistent, warp_groups

# Rows come in pairs of tiles.
_MULTIPLE = 2 * warp_groups.ROWS
# A sum of exponentials, none of which was cut off, is less.
_FAR = math.exp(exponentials.MOST * 0.999)


def unsupported(x_TD, head_VD, target_T, weight_T, bias_V=None) -> str | None:
  """Why this engine cannot run these inputs, or None."""
  del target_T, weight_T
  if reason := warp_groups.unavailable():
    return reason
  if x_TD.dtype != jnp.bfloat16:
    return f'takes bfloat16, not {x_TD.dtype}'
  if bias_V is not None:
    return 'takes no bias'
  step, least = persistent.STEP, persistent.COLUMNS
  if any(size % step for size in head_VD.shape) or len(head_VD) < least:
    return (
      f'takes a head whose sides are multiples of {step}, of {least} rows at '
      f'least, not {head_VD.shape}'
    )
  return api.unsupported(x_TD, head_VD)


@jax.custom_vjp
def linear_cross_entropy(x_TD, head_VD, target_T, weight_T, bias_V=None):
  """See `ops.linear_cross_entropy`."""
  del bias_V
  return _run(x_TD, head_VD, target_T, weight_T, save=False)[0]


def _forward(x_TD, head_VD, target_T, weight_T, bias_V):
  del bias_V
  nats, dx, d_head = _run(x_TD, head_VD, target_T, weight_T, save=True)
  return nats, (dx, d_head, None, jnp.zeros((), head_VD.dtype))


linear_cross_entropy.defvjp(_forward, api.backward)


def _run(x_TD, head_VD, target_T, weight_T, save):
  """The loss, and to `save` the gradients of `x` and of the head."""
  tokens, vocab = x_TD.shape[0], head_VD.shape[0]
  chunks, *_ = api.parts(tokens, vocab)
  rows = pl.cdiv(pl.cdiv(tokens, chunks), _MULTIPLE) * _MULTIPLE

  def one_chunk(carry, chunk):
    nats, d_head = carry
    x_RD, target_R, weight_R = chunk
    target_RD = head_VD[target_R].astype(jnp.float32)
    picked_R = jnp.sum(x_RD.astype(jnp.float32) * target_RD, axis=1)
    shift_R, total_R, e_RV = _exponentials(
      x_RD, head_VD, picked_R, weight_R, save
    )
    nats += jnp.sum((shift_R + jnp.log(total_R) - picked_R) * weight_R)
    if not save:
      return (nats, None), None
    hit_R = (
      jnp.exp(jnp.minimum(picked_R - shift_R, exponentials.MOST)) - total_R
    )
    d_logits_RV = e_RV.at[jnp.arange(rows), target_R].set(
      hit_R.astype(e_RV.dtype), unique_indices=True, mode='promise_in_bounds'
    )
    added, dx = api.gradients(
      d_logits_RV, weight_R / total_R, x_RD, head_VD, d_head.dtype
    )
    return (nats, d_head + added), dx

  zero = jnp.zeros((), jnp.float32)
  d_head = None
  if save:
    d_head = jnp.zeros(head_VD.shape, api.sum_type(chunks, head_VD.dtype))
  (nats, d_head), dx = jax.lax.scan(
    one_chunk,
    (zero, d_head),
    api.split((chunks, rows), x_TD, target_T, weight_T),
  )
  if save:
    dx = dx.reshape(-1, x_TD.shape[1])[:tokens]
  return nats, dx, d_head


def _exponentials(x_RD, head_VD, shift_R, weight_R, save):
  """The shift that none that counts is far from, and sums, exponentials."""

  def run(carry):
    _, shift_R, *_ = carry
    e_RV, total_R = exponentials.exponentials(x_RD, head_VD, shift_R, save=save)
    # NaN is not far: there is nothing to gain.
    far = jnp.any((total_R > _FAR) & (weight_R != 0))
    maximum = lambda: _maximum(x_RD, head_VD)
    next_R = jax.lax.cond(far, maximum, lambda: shift_R)
    return far, next_R, shift_R, total_R, e_RV

  e_RV = None
  if save:
    e_RV = jax.lax.empty((x_RD.shape[0], head_VD.shape[0]), x_RD.dtype)
  start = jnp.bool_(True), shift_R, shift_R, jnp.zeros_like(shift_R), e_RV
  _, _, *found = jax.lax.while_loop(lambda carry: carry[0], run, start)
  return found


def _maximum(x_RD, head_VD):
  """[R] of the logits, whose parts are written."""
  top = lambda x: jnp.max(
    jnp.dot(x, head_VD.T, preferred_element_type=jnp.float32), axis=1
  )
  parts_NRD = x_RD.reshape(-1, _MULTIPLE, x_RD.shape[1])
  return jax.lax.map(top, parts_NRD).reshape(-1)
