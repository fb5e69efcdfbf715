# SPDX-License-Identifier: Apache-2.0
"""The three kernels of attention in Triton.

Axis letters: B sequences, L rows, H query heads, K key heads, G = H/K, C
channels of a head.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from ops.attention import api
from ops.triton.backend import plgpu

_LOG2_E = math.log2(math.e)


class Program:
  """Where a program stands: its sequence, head, and block of rows.

  Attributes:
    b: index of the sequence.
    h: of the head, a query head or (side 'k') a key head.
    kv: of its key head.
    group: G.
    rows: slice of its rows.
  """

  def __init__(self, side, refs, extras, bounds, blocks):
    self.h, self.b, n = (pl.program_id(axis) for axis in range(3))
    if side == 'q':  # The last queries see the most keys.
      n = bounds.shape[1] - 1 - n
    size = blocks.queries if side == 'q' else blocks.keys
    self.group = refs['q'].shape[2] // refs['k'].shape[2]
    self.kv = self.h // self.group
    self.rows = pl.ds(n * size, size)
    self._side, self._extras = side, extras
    b = self.b if bounds.shape[0] > 1 else 0
    self._ends = [bounds[b, n, i] for i in range(4)]
    if 'q_segments' in extras:
      self._own = plgpu.load(extras[f'{side}_segments'].at[self.b, self.rows])

  def load(self, ref):
    """Its rows of its head."""
    return plgpu.load(ref.at[self.b, self.rows, self.h])

  def store(self, ref, value):
    """Its rows of its head."""
    at = ref.at[self.b, self.rows, self.h]
    plgpu.store(at, value.astype(ref.dtype))

  def loops(self, body, carry, *, steps=1):
    """body(masked, n, carry) for what it must look at, `steps` each."""
    ends = [steps * end for end in self._ends]
    parts = list(zip((True, False, True), ends, ends[1:], strict=False))
    if not self._extras:  # See `ranges`.
      parts = parts[1:] if self._side == 'q' else parts[:2]
    for masked, start, stop in parts:
      step = functools.partial(body, masked)
      carry = jax.lax.fori_loop(start, stop, step, carry)
    return carry

  def mask(self, scores, rows):
    """Scores [own rows, rows], -inf where the key is not visible."""
    both: Any = (self.rows, rows)
    sides = ('q', 'k') if self._side == 'q' else ('k', 'q')
    own, other = map(self._places, sides, both)
    own, other = own[:, None], other[None]
    q_row, k_row = (own, other) if self._side == 'q' else (other, own)
    visible = q_row >= k_row
    if 'window' in self._extras:
      visible &= q_row - k_row < self._extras['window'][0]
    if 'q_segments' in self._extras:
      name = 'k_segments' if self._side == 'q' else 'q_segments'
      segments = plgpu.load(self._extras[name].at[self.b, rows])
      visible &= self._own[:, None] == segments[None]
    return jnp.where(visible, scores, -jnp.inf)

  def _places(self, side, rows):
    """Where these rows of the arrays stand in their sequence."""
    if side == 'q' and 'q_rows' in self._extras:
      return plgpu.load(self._extras['q_rows'].at[rows])
    return rows.start + jax.lax.iota(jnp.int32, rows.size)


def forward(refs, extras, bounds, results, *, blocks):
  """Results of a block of queries and their log-sum-exps."""
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
  start = jnp.zeros(q.shape, jnp.float32), zero + api.NOTHING, zero
  out, top, total = at.loops(body, start)
  total = jnp.maximum(total, 1e-30)  # 0 where a row sees no key.
  at.store(results['out'], out / total[:, None])
  lse = top + jnp.log2(total)
  plgpu.store(results['lse'].at[at.b, at.h, at.rows], lse)


def of_keys(refs, extras, bounds, results, *, blocks):
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


def of_queries(refs, extras, bounds, results, *, blocks):
  """Gradients of a block of queries."""
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
