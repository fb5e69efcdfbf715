# SPDX-License-Identifier: Apache-2.0
"""Chunks of tokens; gradients are made while a chunk's logits are at hand."""

import jax
import jax.numpy as jnp

from ops.cross_entropy import api

# Logits of a chunk: 3 * 2^27 float32 are 1.5 GiB, 1,024 tokens of ZAYA1's
# vocabulary. Each chunk reads and writes the whole gradient of the head: with
# chunks of 128 tokens that took 0.41 s of a step of 1.10 s (8 layers of
# ZAYA1-8B, 32,768 tokens, H200).
_MAX_LOGITS = 3 * 2**27


def chunk_tokens(num_tokens: int, vocab: int, limit: int = _MAX_LOGITS) -> int:
  """The largest divisor of `num_tokens` whose logits stay within `limit`."""
  bound = max(1, limit // vocab)
  return max(
    c for c in range(1, num_tokens + 1) if num_tokens % c == 0 and c <= bound
  )


@jax.custom_vjp
def linear_cross_entropy(x_TD, head_VD, target_T, weight_T, bias_V):
  """See `ops.linear_cross_entropy`."""
  chunks = _split(x_TD, target_T, weight_T, vocab=head_VD.shape[0])

  def one_chunk(total, chunk):
    x, target, weight = chunk
    logits = _logits(x, head_VD, bias_V)
    nats = jax.nn.logsumexp(logits, axis=1) - _pick(logits, target)
    return total + jnp.sum(nats * weight), None

  return _scan(one_chunk, _zero(weight_T), chunks)[0]


def _forward(x_TD, head_VD, target_T, weight_T, bias_V):
  chunks = _split(x_TD, target_T, weight_T, vocab=head_VD.shape[0])
  d_bias = None if bias_V is None else jnp.zeros_like(bias_V, jnp.float32)

  def one_chunk(sums, chunk):
    total, d_head, d_bias = sums
    x, target, weight = chunk
    logits = _logits(x, head_VD, bias_V)
    log_z = jax.nn.logsumexp(logits, axis=1, keepdims=True)
    nats = log_z[:, 0] - _pick(logits, target)
    column = jax.lax.broadcasted_iota(jnp.int32, logits.shape, 1)
    hit = column == target[:, None]
    d_logits = (jnp.exp(logits - log_z) - hit) * weight[:, None]
    if d_bias is not None:
      d_bias += jnp.sum(d_logits, axis=0)
    d_logits = d_logits.astype(x.dtype)
    d_head += jnp.dot(d_logits.T, x, preferred_element_type=jnp.float32)
    dx = jnp.dot(d_logits, head_VD).astype(x.dtype)
    return (total + jnp.sum(nats * weight), d_head, d_bias), dx

  d_head = jnp.zeros_like(head_VD, jnp.float32)
  (total, d_head, d_bias), dx = _scan(
    one_chunk, (_zero(weight_T), d_head, d_bias), chunks
  )
  head_like = jnp.zeros((), head_VD.dtype)
  return total, (dx.reshape(x_TD.shape), d_head, d_bias, head_like)


linear_cross_entropy.defvjp(_forward, api.backward)


def _split(*arrays, vocab):
  num_tokens = arrays[0].shape[0]
  chunk = chunk_tokens(num_tokens, vocab)
  shape = (num_tokens // chunk, chunk)
  return tuple(a.reshape(*shape, *a.shape[1:]) for a in arrays)


def _zero(weight_T):
  """A scalar that, inside of shard_map, differs by device as the sums will."""
  return jnp.zeros_like(weight_T[0], jnp.float32)


def _scan(f, init, chunks):
  """lax.scan, without the loop where there is one chunk."""
  if chunks[0].shape[0] > 1:
    return jax.lax.scan(f, init, chunks)
  return f(init, jax.tree.map(lambda a: a[0], chunks))


def _logits(x, head_VD, bias_V):
  logits = jnp.dot(x, head_VD.T, preferred_element_type=jnp.float32)
  return logits if bias_V is None else logits + bias_V[None]


def _pick(logits, target):
  return jnp.take_along_axis(logits, target[:, None], axis=1)[:, 0]
