# SPDX-License-Identifier: Apache-2.0
"""The experts by `jax.lax.ragged_dot_general`, which is hipBLASLt on ROCm.

XLA:ROCm makes one grouped product of the vendor's library of each, if it is
told to; every other XLA multiplies each token by the matrices of all experts.

Axis letters: those of `ops.experts.api`.
"""

import os
from typing import Any

import jax
import jax.numpy as jnp

from ops import dispatch
from ops.experts import api, sorting

# XLA's, of jax 0.10 on; its default differs by version.
FLAG = '--xla_gpu_experimental_use_ragged_dot_grouped_gemm=true'


def unsupported(x_TD, expert_T, gate_up, down) -> str | None:
  """Why it cannot run."""
  del expert_T
  here = dispatch.platform()
  if here == 'cuda':
    return 'XLA:CUDA multiplies each token by the matrices of all experts'
  if here == 'rocm' and FLAG not in os.environ.get('XLA_FLAGS', '').split():
    return f'XLA needs {FLAG} in XLA_FLAGS to call hipBLASLt'
  types = ('bfloat16', 'float16') if here == 'rocm' else ('bfloat16', 'float32')
  return api.unsupported(x_TD, gate_up, down, *types)


def expert_mlp(*inputs: Any) -> Any:
  """See `ops.expert_mlp`."""
  return api.expert_mlp(_PRODUCTS, lambda _: 0, *inputs)


def _sort(x_TD, places):
  order_T, inverse_T, _ = places
  return sorting.permute(x_TD, order_T, inverse_T)


def _up(x_TD, places, gate_up_EDG, *, save):
  h_TG = _rows_by(_sort(x_TD, places), places, gate_up_EDG)
  gate, up = jnp.split(h_TG.astype(jnp.float32), 2, axis=1)
  sigmoid = jax.nn.sigmoid(gate)
  silu = gate * sigmoid
  made = [silu * up]
  if save:
    slope = up * sigmoid * (1 + gate - silu)
    made.append(jnp.concatenate([slope, silu], axis=1))
  return [a.astype(x_TD.dtype) for a in made]


def _matmul(x_TK, places, w, *, transposed=False):
  order_T, inverse_T, _ = places
  y_TN = _rows_by(x_TK, places, w, 2 if transposed else 1)
  return sorting.permute(y_TN, inverse_T, order_T)


def _d_up(dy_TD, slopes_TG, places, down_EFD):
  d_a = _rows_by(dy_TD, places, down_EFD, 2)
  return jnp.concatenate([d_a, d_a], axis=1) * slopes_TG


def _d_weights(x_TK, dy_TN, places):
  return _ragged_dot(x_TK, dy_TN, places, (0, 0), [])


def _rows_by(x_TK, places, w, axis=1):
  """Of each sorted row by the matrix of its expert, K of which is `axis`."""
  y_TN = _ragged_dot(x_TK, w, places, (1, axis), [0])
  # The library writes no row that has no expert.
  has_expert = jnp.arange(len(x_TK)) < places[-1][-1]
  return jnp.where(has_expert[:, None], y_TN, 0)


def _ragged_dot(x, y, places, axes, groups):
  """Sums over `axes` of both; `groups`: the axes of y that are the experts."""
  starts = places[-1]
  numbers = jax.lax.RaggedDotDimensionNumbers(
    dot_dimension_numbers=(tuple((axis,) for axis in axes), ((), ())),
    lhs_ragged_dimensions=[0],
    rhs_group_dimensions=groups,
  )
  return jax.lax.ragged_dot_general(x, y, starts[1:] - starts[:-1], numbers)


_PRODUCTS = api.Products(
  sorting.sort_by_expert, _sort, _up, _matmul, _d_up, _d_weights
)
