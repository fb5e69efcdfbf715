# SPDX-License-Identifier: Apache-2.0
"""Attention of some rows of a sequence against all of its keys, by kernels.

For devices that divide the rows of a sequence and gather its keys. As these
keys have queries on other devices too, the gradient is left to the caller:
`forward`, and `backward` from what it has saved.

Axis letters: B sequences, L rows of queries, S of keys, H query heads, K key
heads, C channels of a head.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ops import dispatch
from ops.attention import api, triton
from ops.triton import backend


class Saved(NamedTuple):
  """What the backward pass needs beside the keys; `forward` made it."""

  q: jax.Array
  out: jax.Array
  lse: jax.Array


def kernels(
  q_BLHC: jax.Array, k_BSKC: jax.Array, v_BSKC: jax.Array
) -> api.Kernels | None:
  """The kernels for these inputs; None where XLA is to compute them.

  Raises:
    UnsupportedError: if an engine is named that cannot run here.
  """
  return dispatch.select('attention', _ENGINES, q_BLHC, k_BSKC, v_BSKC)()


def forward(
  kernels: api.Kernels,
  q_BLHC: jax.Array,
  k_BSKC: jax.Array,
  v_BSKC: jax.Array,
  q_rows_L: jax.Array,
  **options: Any,
) -> tuple[jax.Array, Saved]:
  """`ops.attention` of queries that stand at `q_rows_L`; key s at row s.

  Args:
    kernels: of `kernels`.
    q_BLHC: [B, L, H, C] queries.
    k_BSKC: [B, S, K, C] keys, all of the sequence, in their order.
    v_BSKC: [B, S, K, C] values.
    q_rows_L: [L] int32, ascending.
    **options: segments and window, as `ops.attention` has them.

  Returns:
    [B, L, H, C] in the type of the queries, and what `backward` wants.
  """
  inputs, extras = _padded(q_BLHC, k_BSKC, v_BSKC, q_rows_L, options)
  found = kernels.forward(inputs, extras)
  out_BLHC = found['out'][:, : q_BLHC.shape[1]]
  return out_BLHC, Saved(q_BLHC, out_BLHC, found['lse'])


def backward(
  kernels: api.Kernels,
  saved: Saved,
  d_out_BLHC: jax.Array,
  k_BSKC: jax.Array,
  v_BSKC: jax.Array,
  q_rows_L: jax.Array,
  **options: Any,
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Gradients of `forward`: of queries, and of keys and values in float32."""
  inputs, extras = _padded(saved.q, k_BSKC, v_BSKC, q_rows_L, options)
  behind = inputs['q'].shape[1] - saved.q.shape[1]
  pad = lambda a: jnp.pad(a, ((0, 0), (0, behind), (0, 0), (0, 0)))
  d_out, out = pad(d_out_BLHC), pad(saved.out)
  given = {'d_out': d_out, 'lse': saved.lse, 'delta': api.delta(d_out, out)}
  found = kernels.backward(inputs | given, extras)
  rows, keys = saved.q.shape[1], k_BSKC.shape[1]
  return found['q'][:, :rows], found['k'][:, :keys], found['v'][:, :keys]


def _padded(q, k, v, rows, options):
  multiple = triton.multiple()
  return api.padded(q, k, v, multiple=multiple, q_rows_L=rows, **options)


def _unsupported(q_BLHC, k_BSKC, v_BSKC) -> str | None:
  """Why the kernels in Triton cannot run."""
  if q_BLHC.shape[2] % k_BSKC.shape[2]:
    return f'{k_BSKC.shape[2]} key heads do not divide {q_BLHC.shape[2]}'
  return triton.unsupported_arrays(q_BLHC, k_BSKC, v_BSKC)


def _whole(*_) -> str:
  return 'it wants all queries of a sequence, which its devices share'


_ENGINES = (
  dispatch.Engine('hopper', lambda: None, _whole, platforms=('cuda',)),
  dispatch.Engine('cudnn', lambda: None, _whole, platforms=('cuda',)),
  backend.engine(lambda: triton.OF_ROWS, _unsupported, dispatch.wide),
  dispatch.Engine('xla', lambda: None),
)
