# SPDX-License-Identifier: Apache-2.0
"""Attention in Triton, for every GPU: no score leaves the chip.

The softmax is taken online, in powers of two; the backward pass makes the
scores anew from the saved log-sum-exp, in one kernel for keys and values and
one for queries, so that nothing is added atomically and a step repeats bit for
bit. A loop over blocks has three parts, of which the middle one needs no mask.
Programs with the longest loops start first.

Axis letters: B sequences, L rows, H query heads, K key heads, G = H/K, C
channels of a head.
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from ops import dispatch
from ops.attention import blocked, padded
from ops.attention.program import Program
from ops.attention.ranges import ranges


class Blocks(NamedTuple):
  """Rows of a block of queries and of keys, and Triton's two numbers."""

  queries: int
  keys: int
  warps: int
  stages: int


class Tuning(NamedTuple):
  """For each of the three kernels."""

  forward: Blocks
  keys: Blocks
  queries: Blocks


# 'rocm': nothing spills and 64 KiB of local memory suffice, in 128 channels
# of bfloat16. 'cpu': interpreted, small, so that short rows have some blocks.
TUNING = {
  'cuda': Tuning(
    Blocks(128, 64, 8, 3), Blocks(64, 128, 8, 3), Blocks(128, 64, 8, 3)
  ),
  'rocm': Tuning(
    Blocks(128, 64, 8, 1), Blocks(32, 64, 8, 1), Blocks(128, 32, 8, 1)
  ),
  'cpu': Tuning(
    Blocks(32, 16, 4, 1), Blocks(16, 32, 4, 1), Blocks(32, 16, 4, 1)
  ),
}

_LOG2_E = math.log2(math.e)


def unsupported(q_BLHC, k_BSKC, v_BSKC, **options) -> str | None:
  """Why this engine cannot run these inputs, or None."""
  channels = q_BLHC.shape[-1]
  types = {a.dtype for a in (q_BLHC, k_BSKC, v_BSKC)}
  if types - {jnp.dtype(t) for t in ('bfloat16', 'float16', 'float32')}:
    return (
      f'it takes bfloat16, float16 and float32, not {sorted(map(str, types))}'
    )
  if len(types) > 1:
    return 'queries, keys and values differ in type'
  if channels < 16 or channels & (channels - 1):
    return f'{channels} channels a head are no power of two from 16 on'
  if q_BLHC.size >= 2**31:
    return 'the queries have more than 2^31 elements'
  return blocked.unsupported(q_BLHC, k_BSKC, options.get('offset', 0))


def attention(q_BLHC, k_BSKC, v_BSKC, **options) -> jax.Array:
  """See `ops.attention`."""
  tuning = TUNING[dispatch.platform()]
  inputs, extras = padded.padded(
    *(q_BLHC, k_BSKC, v_BSKC),
    multiple=max(n for b in tuning for n in (b.queries, b.keys)),
    **options,
  )
  out = _attention(dispatch.platform(), tuning, inputs, extras)
  return out[:, : q_BLHC.shape[1]]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _attention(platform, tuning, inputs, extras):
  return _forward_rule(platform, tuning, inputs, extras)[0]


def _forward_rule(platform, tuning, inputs, extras):
  q = inputs['q']
  batch, length, heads, _ = q.shape
  results = {
    'out': jax.ShapeDtypeStruct(q.shape, q.dtype),
    'lse': jax.ShapeDtypeStruct((batch, heads, length), jnp.float32),
  }
  found = _call(_forward, platform, tuning.forward, 0, inputs, extras, results)
  return found['out'], (inputs, extras, found)


def _backward_rule(platform, tuning, saved, d_out):
  inputs, extras, found = saved
  given = inputs | {
    'd_out': d_out,
    'lse': found['lse'],
    'delta': padded.delta(d_out, found['out']),
  }
  like = {n: jax.ShapeDtypeStruct(x.shape, x.dtype) for n, x in inputs.items()}
  d_q = {'q': like.pop('q')}
  d_q = _call(_of_queries, platform, tuning.queries, 0, given, extras, d_q)
  d_kv = _call(_of_keys, platform, tuning.keys, 1, given, extras, like)
  return d_q | d_kv, None


_attention.defvjp(_forward_rule, _backward_rule)


def _call(kernel, platform, blocks, side, inputs, extras, results):
  """A program for each block of queries or keys (side) of each of its heads."""
  batch, length = inputs['q'].shape[:2]
  bounds = ranges(
    length,
    blocks.queries,
    blocks.keys,
    extras.get('q_segments'),
    extras.get('k_segments'),
    None if 'window' not in extras else extras['window'][0],
  )[side]
  return pl.pallas_call(
    functools.partial(kernel, blocks=blocks),
    grid=(inputs['qk'[side]].shape[2], batch, bounds.shape[1]),
    out_shape=results,
    compiler_params=plgpu.CompilerParams(
      num_warps=blocks.warps, num_stages=blocks.stages
    ),
    interpret=platform == 'cpu',
    name=f'attention{kernel.__name__}',
  )(inputs, extras, bounds)


def _forward(refs, extras, bounds, results, *, blocks):
  at = Program('q', refs, extras, bounds, blocks)
  q = at.load(refs['q'])
  scale = q.shape[-1] ** -0.5 * _LOG2_E

  def body(masked, n, carry):
    out, top, total = carry
    rows = pl.ds(n * blocks.keys, blocks.keys)
    scores = _dot(q, plgpu.load(refs['k'].at[at.b, rows, at.kv]).T)
    if masked:
      scores = at.mask(scores, rows)
    new_top = jnp.maximum(top, jnp.max(scores, axis=1) * scale)
    weights = jnp.exp2(scores * scale - new_top[:, None])
    shrink = jnp.exp2(top - new_top)
    v = plgpu.load(refs['v'].at[at.b, rows, at.kv])
    out = out * shrink[:, None] + _dot(weights.astype(v.dtype), v)
    return out, new_top, total * shrink + jnp.sum(weights, axis=1)

  zero = jnp.zeros(blocks.queries, jnp.float32)
  start = jnp.zeros(q.shape, jnp.float32), zero + padded.NOTHING, zero
  out, top, total = at.loops(body, start)
  total = jnp.maximum(total, 1e-30)  # 0 where a row sees no key.
  at.store(results['out'], out / total[:, None])
  lse = top + jnp.log2(total)
  plgpu.store(results['lse'].at[at.b, at.h, at.rows], lse)


def _of_keys(refs, extras, bounds, results, *, blocks):
  """Gradients of a block of keys and values, from all heads of its group."""
  at = Program('k', refs, extras, bounds, blocks)
  k, v = at.load(refs['k']), at.load(refs['v'])
  scale = k.shape[-1] ** -0.5

  def body(masked, step, carry):
    d_k, d_v = carry
    rows = pl.ds(step // at.group * blocks.queries, blocks.queries)
    h = at.h * at.group + step % at.group
    q = plgpu.load(refs['q'].at[at.b, rows, h])
    d_out = plgpu.load(refs['d_out'].at[at.b, rows, h])
    scores = _dot(k, q.T)  # [keys, queries]
    if masked:
      scores = at.mask(scores, rows)
    lse = plgpu.load(refs['lse'].at[at.b, h, rows])
    weights = jnp.exp2(scores * (scale * _LOG2_E) - lse[None])
    d_v += _dot(weights.astype(v.dtype), d_out)
    delta = plgpu.load(refs['delta'].at[at.b, h, rows])
    d_scores = weights * (_dot(v, d_out.T) - delta[None])
    return d_k + _dot(d_scores.astype(k.dtype), q), d_v

  zero = jnp.zeros(k.shape, jnp.float32)
  d_k, d_v = at.loops(body, (zero, zero), steps=at.group)
  at.store(results['k'], d_k * scale)
  at.store(results['v'], d_v)


def _of_queries(refs, extras, bounds, results, *, blocks):
  at = Program('q', refs, extras, bounds, blocks)
  q, d_out = at.load(refs['q']), at.load(refs['d_out'])
  lse = plgpu.load(refs['lse'].at[at.b, at.h, at.rows])[:, None]
  delta = plgpu.load(refs['delta'].at[at.b, at.h, at.rows])[:, None]
  scale = q.shape[-1] ** -0.5

  def body(masked, n, d_q):
    rows = pl.ds(n * blocks.keys, blocks.keys)
    k = plgpu.load(refs['k'].at[at.b, rows, at.kv])
    v = plgpu.load(refs['v'].at[at.b, rows, at.kv])
    scores = _dot(q, k.T)
    if masked:
      scores = at.mask(scores, rows)
    weights = jnp.exp2(scores * (scale * _LOG2_E) - lse)
    d_scores = weights * (_dot(d_out, v.T) - delta)
    return d_q + _dot(d_scores.astype(k.dtype), k)

  at.store(
    results['q'], scale * at.loops(body, jnp.zeros(q.shape, jnp.float32))
  )


def _dot(a, b):
  exact = jax.lax.Precision.HIGHEST if a.dtype == jnp.float32 else None
  return plgpu.dot(a, b, precision=exact)
