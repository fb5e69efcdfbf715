# SPDX-License-Identifier: Apache-2.0
"""The experts in HIP, for MI300X: ops/native/grouped_matmul.hip.

Tokens are sorted without gaps, as for Triton.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ops import native
from ops.experts import api, sorting

ROWS = 256  # Of a tile.


def unsupported(x_TD, expert_T, gate_up, down) -> str | None:
  """Why it cannot run."""
  del expert_T
  if down.shape[1] >= 2**22:  # Of 256 rows of gate and up.
    return f'{down.shape[1]} inner channels are more bytes than 32 bits count'
  return native.unavailable('experts_up') or api.unsupported(
    x_TD, gate_up, down, 'bfloat16'
  )


def expert_mlp(*inputs: Any) -> Any:
  """See `ops.expert_mlp`."""
  return api.expert_mlp(_PRODUCTS, lambda size: -size % 8, *inputs)


def up(x_SD, places, gate_up_EDG, *, save):
  """See `api.Products`, as for the others."""
  order_T, starts = places
  tokens, fused = order_T.size, gate_up_EDG.shape[2]
  shapes = [(tokens, fused // 2), (tokens, fused)][: 1 + save]
  inputs = (order_T, x_SD, gate_up_EDG, *_listed(starts, tokens))
  return native.call('experts_up', [_result(*s) for s in shapes], *inputs)


def matmul(x_TK, places, w, *, transposed=False):
  """[T, N]."""
  order_T, starts = places
  tokens = order_T.size
  return native.call(
    'experts_matmul',
    _result(tokens, w.shape[1 if transposed else 2]),
    *(order_T, x_TK, w, *_listed(starts, tokens)),
    turned=np.int32(transposed),
  )


def d_up(dy_TD, slopes_TG, places, down_EFD):
  """[T, G]."""
  inputs = (dy_TD, slopes_TG, down_EFD, *_listed(places[1], len(dy_TD)))
  return native.call('experts_d_up', _result(*slopes_TG.shape), *inputs)


def d_weights(x_TK, dy_TN, places):
  """[E, K, N]."""
  _, starts = places
  shape = (starts.size - 1, x_TK.shape[1], dy_TN.shape[1])
  return native.call('experts_d_weights', _result(*shape), x_TK, dy_TN, starts)


def _listed(starts, tokens):
  """The list, and how many of its tiles are not empty: the dies share those."""
  listed = sorting.tiles(starts, tokens, ROWS)
  live = jnp.sum(listed.first_P < listed.end_P, dtype=jnp.int32)
  return *listed, live[None]


def _result(*shape):
  return jax.ShapeDtypeStruct(shape, jnp.bfloat16)


_PRODUCTS = api.Products(api.place, api.sort, up, matmul, d_up, d_weights)
