# SPDX-License-Identifier: Apache-2.0
"""The router behind its first product, for single tokens, in one kernel.

Of a few tokens these three products are so small that XLA's nine kernels take
longer to start than to run. A program has a token: matrices are read in blocks
of outputs, and sums are float32, exact as `ops.router` asks.

Axis letters: as in `ops.router`; T tokens, N outputs of a block, W classes
filled up to a power of two.
"""

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from ops.router.triton import numbers
from ops.triton import backend, launch
from ops.triton.backend import plgpu

TOKENS = 64  # At most: each reads all matrices, from the cache at best.
_OUTPUTS = 32  # Of a block.


def is_taken(dtype: jnp.dtype, width: int) -> bool:
  """Whether few tokens of a type go through `router`, by the router's width."""
  is_wide = launch.is_block(width) and width >= _OUTPUTS
  return backend.runs() and is_wide and dtype == jnp.bfloat16


def router(
  own_TR: jax.Array,
  previous_TR: jax.Array,
  down_bias_R: jax.Array,
  eda_R: jax.Array,
  norm_R: jax.Array,
  fc1_RR: jax.Array,
  fc1_bias_R: jax.Array,
  fc2_RR: jax.Array,
  fc2_bias_R: jax.Array,
  out_XR: jax.Array,
  balance_X: jax.Array,
  *,
  eps: float,
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """See `ops.router`; all is float32.

  Args:
    own_TR: tokens @ down; R is a power of two.
    previous_TR: the state of the layer before.
    down_bias_R: see there, as all vectors.
    eda_R: vector.
    norm_R: vector.
    fc1_RR: [out, in], as are all matrices here.
    fc1_bias_R: vector.
    fc2_RR: matrix.
    fc2_bias_R: vector.
    out_XR: matrix.
    balance_X: vector.
    eps: see there.

  Returns:
    The choice [T] int32, its probability [T], and the state [T, R].
  """
  tokens, width = own_TR.shape
  vectors = down_bias_R, eda_R, norm_R
  return launch.kernel_call(
    functools.partial(_kernel, eps=eps),
    'router_one',
    (tokens,),
    (
      jax.ShapeDtypeStruct((tokens,), jnp.int32),
      jax.ShapeDtypeStruct((tokens,), jnp.float32),
      jax.ShapeDtypeStruct((tokens, width), jnp.float32),
    ),
    warps=8,
  )(
    *(own_TR, previous_TR, *vectors, fc1_RR, fc1_bias_R, fc2_RR, fc2_bias_R),
    *(out_XR, balance_X),
  )


def _kernel(own_ref, previous_ref, *refs, eps):
  down_bias_ref, eda_ref, norm_ref, *refs = refs
  fc1_ref, fc1_bias_ref, fc2_ref, fc2_bias_ref, *refs = refs
  out_ref, balance_ref, choice_ref, weight_ref, state_ref = refs
  t = pl.program_id(0)
  width, classes = own_ref.shape[1], balance_ref.shape[0]
  channel_R = jnp.arange(width, dtype=jnp.int32)
  vector = lambda ref: plgpu.load(ref.at[channel_R])
  token = lambda ref: plgpu.load(ref.at[t, channel_R])
  state_R = token(own_ref) + vector(down_bias_ref)
  state_R += vector(eda_ref) * token(previous_ref)
  plgpu.store(state_ref.at[t, channel_R], state_R)
  mean_square = jnp.sum(state_R * state_R) / width
  a_R = state_R * jax.lax.rsqrt(mean_square + eps) * vector(norm_ref)
  for w_ref, bias_ref in ((fc1_ref, fc1_bias_ref), (fc2_ref, fc2_bias_ref)):
    a_R = numbers.gelu(_product(w_ref, a_R, channel_R) + vector(bias_ref))
  # In numbers of a register file: powers of two.
  filled = 1 << (classes - 1).bit_length()
  class_W = jnp.arange(filled, dtype=jnp.int32)
  is_real_W = class_W < classes
  row_W = jnp.minimum(class_W, classes - 1)
  w_WR = plgpu.load(out_ref.at[row_W[:, None], channel_R[None]])
  logits_W = jnp.sum(w_WR * a_R[None], axis=1)
  logits_W = jnp.where(is_real_W, logits_W, -jnp.inf)
  weights_W = jnp.exp(logits_W - jnp.max(logits_W))
  probs_W = weights_W / jnp.sum(weights_W)
  biased_W = probs_W + plgpu.load(balance_ref.at[row_W])
  biased_W = jnp.where(is_real_W, biased_W, -jnp.inf)
  # The first of equal ones, as argmax.
  best_W = jnp.where(biased_W == jnp.max(biased_W), class_W, filled)
  choice = jnp.min(best_W)
  choice_ref[t] = choice
  weight_ref[t] = jnp.sum(jnp.where(class_W == choice, probs_W, 0.0))


def _product(w_ref, a_R, channel_R):
  """W @ a, [R]: a block of outputs after the other, each put in its place."""

  def block(i, made_R):
    row_N = i * _OUTPUTS + jnp.arange(_OUTPUTS, dtype=jnp.int32)
    w_NR = plgpu.load(w_ref.at[row_N[:, None], channel_R[None]])
    y_N = jnp.sum(w_NR * a_R[None], axis=1)
    here_NR = row_N[:, None] == channel_R[None]
    return made_R + jnp.sum(jnp.where(here_NR, y_N[:, None], 0.0), axis=0)

  count = w_ref.shape[0] // _OUTPUTS
  return jax.lax.fori_loop(0, count, block, jnp.zeros_like(a_R))
