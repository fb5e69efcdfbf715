# SPDX-License-Identifier: Apache-2.0
"""Causal grouped-query attention with segments and a sliding window."""

import jax

from ops import dispatch
from ops.attention import cudnn, hopper, triton, xla
from ops.attention.cached import attention as cached_attention
from ops.triton import backend

__all__ = ('ENGINES', 'attention', 'cached_attention')

ENGINES = (
  dispatch.Engine(
    'hopper',
    hopper.attention,
    hopper.unsupported,
    platforms=('cuda',),
    slower=hopper.slower,
  ),
  dispatch.Engine('cudnn', cudnn.attention, cudnn.unsupported, ('cuda',)),
  backend.engine(triton.attention, triton.unsupported, dispatch.wide),
  dispatch.Engine('xla', xla.attention),
)


def attention(
  q_BLHC: jax.Array,
  k_BSKC: jax.Array,
  v_BSKC: jax.Array,
  *,
  q_segments_BL: jax.Array | None = None,
  k_segments_BS: jax.Array | None = None,
  offset: jax.Array | int = 0,
  window: jax.Array | int | None = None,
) -> jax.Array:
  """Attends from each query to the keys at or before it in its segment.

  Query i stands at row `offset + i`, key s at row s. It sees s if
  `s <= offset + i`, if `offset + i - s < window`, and if both have the same
  segment. Scores are scaled by 1/sqrt(C); the softmax is taken in float32.

  Args:
    q_BLHC: [B, L, H, C] queries.
    k_BSKC: [B, S, K, C] keys; K divides H, query head h uses key head h*K//H.
    v_BSKC: [B, S, K, C] values.
    q_segments_BL: [B, L] int or bool; None: all the same.
    k_segments_BS: [B, S] likewise; given if `q_segments_BL` is.
    offset: row of the first query: 0, or the tokens already in the cache.
    window: keys that a query sees, its own included; None: all.

  Returns:
    [B, L, H, C] in the type of `v_BSKC`.

  Raises:
    ValueError: if the heads do not divide or only one side has segments.
  """
  if q_BLHC.shape[2] % k_BSKC.shape[2] or k_BSKC.shape != v_BSKC.shape:
    raise ValueError(
      f'attention: heads of q {q_BLHC.shape} must be a multiple of those of '
      f'k {k_BSKC.shape} and v {v_BSKC.shape}.'
    )
  if (q_segments_BL is None) != (k_segments_BS is None):
    raise ValueError('attention: give segments of both queries and keys.')
  qkv = q_BLHC, k_BSKC, v_BSKC
  options = {
    'q_segments_BL': q_segments_BL,
    'k_segments_BS': k_segments_BS,
    'offset': offset,
    'window': window,
  }
  run = dispatch.select('attention', ENGINES, *qkv, **options)
  with jax.named_scope('attention'):
    return run(*qkv, **options)
