# SPDX-License-Identifier: Apache-2.0
"""What the kernels of `ops.linear_cross_entropy` share: chunks and gradients.

The gradients are made going forward, chunk by chunk, out of the gradient of its
logits; XLA does these products, the sum over chunks within them.
"""

import math

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

# Elements in a chunk, 2,048 tokens of ZAYA1's vocabulary: each chunk reads and
# writes the gradient of the head. And in a part: each reads the head.
_CHUNK = 2048 * 262_272
_PART = 256 * 262_272
# Beyond so many chunks the gradient of the head is summed in float32. Up to
# there, sums in the type of the head are wrong by 4 in 1,000 where those in
# float32, rounded once, are by 3; and the matrix products add in place.
_ROUNDED_SUMS = 8


def unsupported(x_TD, head_VD, *_) -> str | None:
  """Why this engine cannot run these inputs, or None."""
  if x_TD.dtype != head_VD.dtype:
    return f'x is {x_TD.dtype} and the head {head_VD.dtype}'
  if head_VD.shape[0] > _PART:
    return f'a vocabulary of {head_VD.shape[0]} is larger than {_PART}'
  if x_TD.dtype == jnp.float16:
    return 'float16 has too few exponents'
  if x_TD.shape[0] == 0:
    return 'there are no tokens'
  return None


def parts(tokens: int, vocab: int) -> tuple[int, int, int]:
  """Chunks, parts of a chunk, tokens of a part: together at least `tokens`."""
  chunks = pl.cdiv(tokens * vocab, _CHUNK)
  chunk = pl.cdiv(tokens, chunks)
  count = pl.cdiv(chunk * vocab, _PART)
  return chunks, count, pl.cdiv(chunk, count)


def sum_type(chunks: int, dtype: jnp.dtype) -> jnp.dtype:
  """Of the sum of the head's gradients, for a head of type `dtype`."""
  return dtype if chunks <= _ROUNDED_SUMS else jnp.float32


def gradients(
  d_logits_RV: jax.Array,
  factor_R: jax.Array,
  x_RD: jax.Array,
  head_VD: jax.Array,
  dtype: jnp.dtype,
) -> tuple[jax.Array, jax.Array]:
  """Of a chunk.

  Args:
    d_logits_RV: [R, V] gradients of the logits, but for a factor of each row.
    factor_R: [R] float32, that factor.
    x_RD: [R, D].
    head_VD: [V, D].
    dtype: of the first result.

  Returns:
    [V, D] of the head, [R, D] of `x`.
  """
  factor_R1 = factor_R[:, None]
  scaled_RD = (x_RD * factor_R1).astype(x_RD.dtype)
  d_head = jnp.dot(d_logits_RV.T, scaled_RD, preferred_element_type=dtype)
  dx = jnp.dot(d_logits_RV, head_VD, preferred_element_type=jnp.float32)
  return d_head, (dx * factor_R1).astype(x_RD.dtype)


def split(shape: tuple[int, ...], *arrays: jax.Array) -> tuple[jax.Array, ...]:
  """Arrays of a number for each token, in `shape`; zeros behind the last."""

  def one(a):
    padding = math.prod(shape) - a.shape[0]
    a = jnp.pad(a, [(0, padding)] + [(0, 0)] * (a.ndim - 1))
    return a.reshape(*shape, *a.shape[1:])

  return tuple(map(one, arrays))


def backward(saved, g):
  """Gradients made going forward, times that of the loss."""
  dx, d_head, d_bias, head_like = saved
  d_bias = None if d_bias is None else g * d_bias
  return (
    (g * dx).astype(dx.dtype),
    (g * d_head).astype(head_like.dtype),
    None,
    None,
    d_bias,
  )
