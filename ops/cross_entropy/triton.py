# SPDX-License-Identifier: Apache-2.0
"""In Triton, chunks whose logits are read once, their gradient written once.

Of a part of a chunk's tokens the logits come from a matrix product. A Triton
kernel reads them row by row and writes their gradient, in the type of the head
and but for a factor of each row, into the chunk's buffer: exp(z - shift), less
the sum of that where the target is. The shift is near the maximum, which no one
knows before the end: that of the first columns; the type has the exponents of
float32. The factor, weight over sum, goes to the other side of the two products
that are the gradients. XLA does the products, the sum over chunks within them.

Beside it there is one buffer for a chunk and the logits of one part: for
ZAYA1's vocabulary 1.07 and 0.27 GB.
"""

import functools
import math

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from ops import dispatch
from ops.cross_entropy import api, xla
from ops.triton import launch
from ops.triton.backend import plgpu

# In bfloat16 the logits of a part would save about 1 of 41 ms on an H200 (half
# the bytes), but be wrong by 0.03 nats a token and their gradient by 1 in 100,
# ten times what rounding the gradient costs.
_LOGITS = jnp.float32
# What a program loads at a time, in warps.
_BLOCK = {'cuda': (4096, 8), 'rocm': (8192, 8), 'cpu': (16, 4)}
# A maximum so far above the shift makes a row start over.
_FAR = 60.0
_LOG2_E = math.log2(math.e)


@jax.custom_vjp
def linear_cross_entropy(x_TD, head_VD, target_T, weight_T, bias_V=None):
  """See `ops.linear_cross_entropy`."""
  # Without a gradient there is nothing to write.
  return xla.linear_cross_entropy(x_TD, head_VD, target_T, weight_T, bias_V)


def _forward(x_TD, head_VD, target_T, weight_T, bias_V):
  tokens, vocab = x_TD.shape[0], head_VD.shape[0]
  shape = api.parts(tokens, vocab)

  def one_chunk(carry, chunk):
    nats, d_head, d_bias, d_logits = carry
    x_NRD, target_NR, weight_NR = chunk

    def one_part(carry, part):
      nats, d_logits = carry
      n, x, target, weight = part
      logits = jnp.dot(x, head_VD.T, preferred_element_type=_LOGITS)
      if bias_V is not None:
        logits += bias_V.astype(logits.dtype)[None]
      nats_R, total_R, d_logits = _softmax(n, logits, target, d_logits)
      return (nats + jnp.sum(nats_R * weight), d_logits), weight / total_R

    (nats, d_logits), factor_NR = jax.lax.scan(
      one_part,
      (nats, d_logits),
      (jnp.arange(shape[1], dtype=jnp.int32), x_NRD, target_NR, weight_NR),
    )
    factor_R = factor_NR.reshape(-1)
    if d_bias is not None:
      d_bias += jnp.sum(d_logits * factor_R[:, None], axis=0)
    x = x_NRD.reshape(-1, x_NRD.shape[-1])
    added, dx = api.gradients(d_logits, factor_R, x, head_VD, d_head.dtype)
    return (nats, d_head + added, d_bias, d_logits), dx

  start = (
    jnp.zeros((), jnp.float32),
    jnp.zeros(head_VD.shape, api.sum_type(shape[0], head_VD.dtype)),
    None if bias_V is None else jnp.zeros(vocab, jnp.float32),
    jax.lax.empty((shape[1] * shape[2], vocab), x_TD.dtype),
  )
  (nats, d_head, d_bias, _), dx = jax.lax.scan(
    one_chunk, start, api.split(shape, x_TD, target_T, weight_T)
  )
  dx = dx.reshape(-1, x_TD.shape[1])[:tokens]
  head_like = jnp.zeros((), head_VD.dtype)
  return nats, (dx, d_head, d_bias, head_like)


linear_cross_entropy.defvjp(_forward, api.backward)


def _softmax(part, logits_RV, target_R, d_logits):
  """Of a part: loss [R], sums [R]; `d_logits` with its rows, in place."""
  rows, vocab = logits_RV.shape
  block, warps = _BLOCK[dispatch.platform()]
  of_rows = jax.ShapeDtypeStruct((rows,), jnp.float32)
  d_shape = jax.ShapeDtypeStruct(d_logits.shape, d_logits.dtype)
  return launch.kernel_call(
    functools.partial(_kernel, block=block, vocab=vocab),
    'cross_entropy_softmax',
    (rows,),
    (of_rows, of_rows, d_shape),
    warps=warps,
    aliases={3: 2},
  )(part[None], logits_RV, target_R, d_logits)


def _kernel(part, logits, target, _, nats, totals, d_logits, *, block, vocab):
  row, blocks = pl.program_id(0), pl.cdiv(vocab, block)
  out_row = part[0] * logits.shape[0] + row

  def load(n):
    """Logits of a block and their columns, of which there may be less."""
    # Indices: a slice may not reach out of an array, whatever its mask.
    columns = n * block + jnp.arange(block, dtype=jnp.int32)
    at = logits.at[row, columns]
    z = plgpu.load(at, mask=columns < vocab, other=-jnp.inf)
    return z.astype(jnp.float32), columns

  def sweep(count, shift):
    """Writes exp(z - shift); the maximum of z, and the sum."""

    def body(n, carry):
      top, total = carry
      z, columns = load(n)
      e = _exp(z - shift)
      at = d_logits.at[out_row, columns]
      plgpu.store(at, e.astype(d_logits.dtype), mask=columns < vocab)
      return jnp.maximum(top, z), total + e

    zero = jnp.zeros(block, jnp.float32)
    top, total = jax.lax.fori_loop(0, count, body, (zero - jnp.inf, zero))
    return jnp.max(top), jnp.sum(total)

  shift = jnp.max(load(0)[0])
  top, total = sweep(blocks, shift)
  far = top - shift > _FAR
  _, again = sweep(jax.lax.select(far, jnp.int32(blocks), jnp.int32(0)), top)
  shift, total = jnp.where(far, top, shift), jnp.where(far, again, total)
  picked = logits[row, target[row]].astype(jnp.float32)
  nats[row] = shift + jnp.log(total) - picked
  totals[row] = total
  if dispatch.platform() != 'cpu':  # Not known to the interpreter.
    plgpu.debug_barrier()  # Another thread wrote here before.
  hit = _exp(picked - shift) - total
  d_logits[out_row, target[row]] = hit.astype(d_logits.dtype)


def _exp(x):
  return jnp.exp2(x * _LOG2_E)
