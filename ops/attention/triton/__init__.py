# SPDX-License-Identifier: Apache-2.0
"""Attention in Triton, for every GPU: no score leaves the chip.

The softmax is taken online, in powers of two; the backward pass makes the
scores anew from the saved log-sum-exp, in one kernel for keys and values and
one for queries, so that nothing is added atomically and a step repeats bit for
bit. A loop over blocks has three parts, of which the middle one needs no mask.
Programs with the longest loops start first.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from ops import dispatch
from ops.attention import api, ranges
from ops.attention.triton import kernels
from ops.triton import launch


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


def unsupported(q_BLHC, k_BSKC, v_BSKC, **options) -> str | None:
  """Why this engine cannot run these inputs, or None."""
  offset = options.get('offset', 0)
  wrong = unsupported_arrays(q_BLHC, k_BSKC, v_BSKC)
  return wrong or api.unsupported(q_BLHC, k_BSKC, offset)


def unsupported_arrays(q_BLHC, k_BSKC, v_BSKC) -> str | None:
  """Why its kernels cannot take these arrays, wherever their rows stand."""
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
  return None


def attention(q_BLHC, k_BSKC, v_BSKC, **options) -> jax.Array:
  """See `ops.attention`."""
  inputs, extras = api.padded(
    q_BLHC, k_BSKC, v_BSKC, multiple=multiple(), **options
  )
  return api.attention(_KERNELS, inputs, extras)[:, : q_BLHC.shape[1]]


def multiple() -> int:
  """Of which rows are padded to one."""
  tuning = TUNING[dispatch.platform()]
  return max(n for b in tuning for n in (b.queries, b.keys))


def _forward(inputs, extras):
  q = inputs['q']
  batch, length, heads, _ = q.shape
  results = {
    'out': jax.ShapeDtypeStruct(q.shape, q.dtype),
    'lse': jax.ShapeDtypeStruct((batch, heads, length), jnp.float32),
  }
  blocks = TUNING[dispatch.platform()].forward
  return call(kernels.forward, blocks, 0, inputs, extras, results)


def _backward(inputs, extras, sums=None):
  """All gradients; those of keys and values in the type `sums`, if given."""
  types = {n: inputs[n].dtype for n in 'qkv'}
  types |= {n: sums or types[n] for n in 'kv'}
  like = {n: jax.ShapeDtypeStruct(inputs[n].shape, types[n]) for n in 'qkv'}
  d_q, tuning = {'q': like.pop('q')}, TUNING[dispatch.platform()]
  d_q = call(kernels.of_queries, tuning.queries, 0, inputs, extras, d_q)
  return d_q | call(kernels.of_keys, tuning.keys, 1, inputs, extras, like)


_KERNELS = api.Kernels(_forward, _backward)
# For keys whose gradients other devices add to.
OF_ROWS = api.Kernels(_forward, functools.partial(_backward, sums=jnp.float32))


def call(kernel, blocks, side, inputs, extras, results) -> api.Arrays:
  """A program for each block of queries or keys (side) of each of its heads."""
  batch, length = inputs['q'].shape[:2]
  bounds = ranges.ranges(
    length,
    blocks.queries,
    blocks.keys,
    extras.get('q_segments'),
    extras.get('k_segments'),
    None if 'window' not in extras else extras['window'][0],
    extras.get('q_rows'),
    inputs['k'].shape[1],
  )[side]
  return launch.kernel_call(
    functools.partial(kernel, blocks=blocks),
    f'attention_{kernel.__name__}',
    (inputs['qk'[side]].shape[2], batch, bounds.shape[1]),
    results,
    warps=blocks.warps,
    stages=blocks.stages,
  )(inputs, extras, bounds)
