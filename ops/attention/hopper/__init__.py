# SPDX-License-Identifier: Apache-2.0
"""Attention by kernels for Hopper GPUs.

`inputs` of the kernels, by name: 'q' [B, L, H, C], 'k' and 'v' [B, L, K, C];
'q_bounds' and 'k_bounds' of `_covering`, 'q_order' and 'k_order' of `_longest`;
where given, 'q_segments' and 'k_segments' [B, L] with 'alone' of `_alone`, and
'window' [1], all int32; for gradients 'd_out' [B, L, H, C], 'lse' and 'delta'
[B, H, L] float32. L is a multiple of ROWS.
"""

import jax
import jax.numpy as jnp
import numpy as np

from ops.attention import api, ranges
from ops.attention.hopper import forward, keys, queries, shared
from ops.hopper import warp_groups
from ops.hopper.warp_groups import ROWS
from ops.once import once

# Programs that keep a GPU's processors busy to the end, also if they differ.
_ENOUGH = 512
# Bytes that the gradients of scores may take between two kernels.
_MOST_SAVED = 2**30


def unsupported(q_BLHC, k_BSKC, v_BSKC, **options) -> str | None:
  """Why this engine cannot run these inputs, or None."""
  channels = q_BLHC.shape[-1]
  types = sorted({str(a.dtype) for a in (q_BLHC, k_BSKC, v_BSKC)})
  if reason := warp_groups.unavailable():
    return reason
  if types not in (['bfloat16'], ['float16']):
    return f'it takes bfloat16 or float16, not {types}'
  if channels not in shared.CHANNELS:
    known = ' or '.join(map(str, shared.CHANNELS))
    return f'it takes {known} channels a head, not {channels}'
  return api.unsupported(q_BLHC, k_BSKC, options.get('offset', 0))


def slower(q_BLHC: jax.Array, *_, **__) -> str | None:
  """Where other engines may be faster."""
  if _saves(q_BLHC):
    return None
  return 'not measured where scores are computed anew for their gradients'


def attention(q_BLHC, k_BSKC, v_BSKC, **options) -> jax.Array:
  """See `ops.attention`."""
  inputs, extras = api.padded(q_BLHC, k_BSKC, v_BSKC, multiple=ROWS, **options)
  extras |= _layout(inputs['q'], extras)
  return api.attention(_KERNELS, inputs, extras)[:, : q_BLHC.shape[1]]


def _layout(q, extras):
  """What each program looks at, and in which order they come."""
  bounds = ranges.ranges(
    q.shape[1],
    ROWS,
    ROWS,
    extras.get('q_segments'),
    extras.get('k_segments'),
    None if 'window' not in extras else extras['window'][0],
  )
  found = {}
  for side, ends in zip('qk', _covering(*bounds), strict=True):
    found[f'{side}_bounds'] = jnp.asarray(ends)
    found[f'{side}_order'] = jnp.asarray(_longest(ends, q.shape[0]))
  if 'q_segments' in extras:
    found['alone'] = _alone(extras['q_segments'], extras['k_segments'])
  return found


def _forward(inputs, extras):
  turns = _turns(inputs['q'], inputs['k'])
  return once(forward.forward(inputs | extras, turns))


def _backward(inputs, extras):
  q, turns = inputs['q'], _turns(inputs['q'], inputs['k'])
  inputs, save = inputs | extras, _saves(q)
  d_kv = keys.of_keys(inputs, save=save)
  if save:
    d_q = queries.of_queries_saved(inputs, d_kv['d_scores'], turns)
  else:
    d_q = queries.of_queries(inputs, turns)
  return {'q': d_q, 'k': d_kv['k'], 'v': d_kv['v']}


_KERNELS = api.Kernels(_forward, _backward)


def _saves(q):
  """Whether gradients of scores may be kept between two kernels."""
  batch, length, heads, _ = q.shape
  pairs = shared.pairs(length + -length % ROWS)
  size = batch * heads * pairs * ROWS**2 * q.dtype.itemsize
  return size <= _MOST_SAVED


def _alone(*segments):
  """[B, blocks] int32: 1 if all rows of a block have one segment."""
  rows = [x.reshape(x.shape[0], -1, ROWS) for x in segments]
  same = [(x == rows[0][..., :1]).all(axis=2) for x in rows]
  return (same[0] & same[1]).astype(jnp.int32)


def _covering(q_bounds, k_bounds):
  """Ranges as the kernels need them.

  Queries look at one block of keys at least, and the ranges of keys hold each
  pair of blocks that those of the queries hold.
  """
  xp = np if isinstance(q_bounds, np.ndarray) else jnp
  index = xp.arange(q_bounds.shape[1])
  first, full_start, full_stop, last = (q_bounds[..., i] for i in range(4))
  last = xp.maximum(last, first + 1)
  q_bounds = xp.stack((first, full_start, full_stop, last), axis=-1)
  rows, columns = index[None, :, None], index[None, None]
  held = (columns >= first[..., None]) & (columns < last[..., None])
  start = xp.where(held, rows, index.size).min(axis=1)
  stop = xp.where(held, rows + 1, 0).max(axis=1)
  first, full_start, full_stop, last = (k_bounds[..., i] for i in range(4))
  start = xp.minimum(start, xp.where(first < last, first, index.size))
  stop = xp.maximum(stop, last)
  ends = xp.minimum(start, stop), full_start, full_stop, stop
  return q_bounds, xp.stack(ends, axis=-1).astype('int32')


def _longest(bounds, batch):
  """All blocks of all sequences [B * blocks] int32, the longest first."""
  xp = np if isinstance(bounds, np.ndarray) else jnp
  cost = xp.broadcast_to(
    bounds[..., 3] - bounds[..., 0], (batch, bounds.shape[1])
  ).reshape(-1)
  index = xp.arange(cost.size)
  # Compared each with each: a sort takes longer on a GPU.
  less, more = cost[:, None], cost[None]
  before = (more > less) | ((more == less) & (index[None] < index[:, None]))
  place = before.sum(axis=1)
  order = xp.where(place[None] == index[:, None], index[None], 0).sum(axis=1)
  return order.astype('int32')


def _turns(q, k):
  """Query heads of a program: many, if enough programs are left."""
  batch, length, heads, _ = q.shape
  blocks = batch * k.shape[2] * (length // ROWS)
  group = heads // k.shape[2]
  return next(
    n
    for n in range(group, 0, -1)
    if group % n == 0 and (blocks * (group // n) >= _ENOUGH or n == 1)
  )
