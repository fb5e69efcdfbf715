# SPDX-License-Identifier: Apache-2.0
"""Experts one after another over blocks of sorted tokens; any backend.

Tokens are sorted by expert. Expert e owns the rows [starts[e], starts[e+1]) and
walks over them in blocks of static size; the number of blocks is a loop bound
known only at run time, so the work is that of the tokens plus at most one
partial block per expert. A block may reach into rows of the next expert: these
are overwritten when that expert's turn comes, and are masked out of the weight
gradients.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from ops import dispatch
from ops.experts import api, packed, reference
from ops.experts import sink as sink_lib
from ops.experts.sorting import permute, sort_by_expert


def unsupported(x_TD, expert_T, gate_up, down) -> str | None:
  """Why it cannot run."""
  del expert_T, down
  return api.uncounted(x_TD, gate_up)


def expert_mlp(x_TD, expert_T, gate_up_EDF, down_EFD, sink=None) -> Any:
  """See `ops.expert_mlp`."""
  if sink:
    gate_up_EDF, down_EFD, stacks = sink_lib.tap(gate_up_EDF, down_EFD, sink)
    return expert_mlp(x_TD, expert_T, gate_up_EDF, down_EFD), stacks
  order_T, inverse_T, starts = sort_by_expert(expert_T, gate_up_EDF.shape[0])
  sorted_TD = permute(x_TD, order_T, inverse_T)
  y_TD = _grouped_mlp(sorted_TD, starts, gate_up_EDF, down_EFD)
  return permute(y_TD, inverse_T, order_T)


def expert_mlp_rows(x_TD, expert_T, gate_up_EFD, down_EDF) -> jax.Array:
  """See `ops.expert_mlp_rows`."""
  order_T, inverse_T, starts = sort_by_expert(expert_T, gate_up_EFD.shape[0])
  sorted_TD = permute(x_TD, order_T, inverse_T)
  matrix = lambda w, e: packed.widen(packed.pick(w, e), x_TD.dtype).T
  y_TD = _forward(
    sorted_TD, starts, lambda e: (matrix(gate_up_EFD, e), matrix(down_EDF, e))
  )
  return permute(y_TD, inverse_T, order_T).astype(jnp.float32)


def block_size(num_tokens: int, num_experts: int) -> int:
  """Rows of a block: about the tokens of an expert, for full matmuls.

  Larger blocks amortize reading the weights, smaller ones waste less of the
  last, partial block. 128 was fastest on a CPU for 64 to 1,024 tokens per
  expert; on an H200, where each turn of the loop costs time as well, 1,024
  for 1,024 tokens per expert (7.1 ms forward and backward, 20.4 with 128).
  """
  mean = max(1, num_tokens // num_experts)
  most = 128 if dispatch.platform() == 'cpu' else 1024
  return min(most, max(8, 1 << (mean - 1).bit_length()))


@jax.custom_vjp
def _grouped_mlp(x_TD, starts, gate_up_EDF, down_EFD):
  return _forward(x_TD, starts, lambda e: (gate_up_EDF[e], down_EFD[e]))


def _forward(x_TD, starts, matrices):
  num_tokens, width = x_TD.shape
  num_experts = starts.size - 1
  block = block_size(num_tokens, num_experts)
  padded_TD = jnp.pad(x_TD, ((0, block), (0, 0)))

  def expert(e, y_TD):
    gate_up, down = matrices(e)

    def one_block(j, y_TD):
      row = starts[e] + j * block
      x = jax.lax.dynamic_slice(padded_TD, (row, 0), (block, width))
      y = _dot(reference.swiglu(_dot(x, gate_up)), down)
      return jax.lax.dynamic_update_slice(y_TD, y, (row, 0))

    return jax.lax.fori_loop(0, _num_blocks(starts, e, block), one_block, y_TD)

  y_TD = jax.lax.fori_loop(0, num_experts, expert, jnp.zeros_like(padded_TD))
  # Rows behind the last expert chose no expert; a partial block wrote there.
  has_expert = jnp.arange(num_tokens) < starts[-1]
  return jnp.where(has_expert[:, None], y_TD[:num_tokens], 0)


def _grouped_mlp_fwd(x_TD, starts, gate_up_EDF, down_EFD):
  saved = (x_TD, starts, gate_up_EDF, down_EFD)
  return _grouped_mlp(*saved), saved


def _grouped_mlp_bwd(saved, dy_TD):
  x_TD, starts, gate_up_EDF, down_EFD = saved
  num_tokens, width = x_TD.shape
  block = block_size(num_tokens, gate_up_EDF.shape[0])
  pad = functools.partial(jnp.pad, pad_width=((0, block), (0, 0)))
  x_TD, dy_TD = pad(x_TD), pad(dy_TD)

  def expert(e, grads):
    dx_TD, d_gate_up, d_down = grads
    gate_up, down = gate_up_EDF[e], down_EFD[e]

    def one_block(j, sums):
      dx_TD, d_gate_up, d_down = sums
      row = starts[e] + j * block
      x = jax.lax.dynamic_slice(x_TD, (row, 0), (block, width))
      dy = jax.lax.dynamic_slice(dy_TD, (row, 0), (block, width))
      mine = row + jnp.arange(block) < starts[e + 1]
      dy = jnp.where(mine[:, None], dy, 0)
      a, swiglu_vjp = jax.vjp(reference.swiglu, _dot(x, gate_up))
      (dh,) = swiglu_vjp(_dot(dy, down.T))
      dx_TD = jax.lax.dynamic_update_slice(dx_TD, _dot(dh, gate_up.T), (row, 0))
      return (
        dx_TD,
        d_gate_up + _dot(x.T, dh, jnp.float32),
        d_down + _dot(a.T, dy, jnp.float32),
      )

    zeros = (
      jnp.zeros_like(gate_up, jnp.float32),
      jnp.zeros_like(down, jnp.float32),
    )
    dx_TD, dg, dd = jax.lax.fori_loop(
      0, _num_blocks(starts, e, block), one_block, (dx_TD, *zeros)
    )
    return (
      dx_TD,
      d_gate_up.at[e].set(dg.astype(d_gate_up.dtype)),
      d_down.at[e].set(dd.astype(d_down.dtype)),
    )

  dx_TD, d_gate_up, d_down = jax.lax.fori_loop(
    0,
    gate_up_EDF.shape[0],
    expert,
    (
      jnp.zeros_like(x_TD),
      jnp.zeros_like(gate_up_EDF),
      jnp.zeros_like(down_EFD),
    ),
  )
  has_expert = jnp.arange(num_tokens) < starts[-1]
  dx_TD = jnp.where(has_expert[:, None], dx_TD[:num_tokens], 0)
  return dx_TD, None, d_gate_up, d_down


_grouped_mlp.defvjp(_grouped_mlp_fwd, _grouped_mlp_bwd)


def _num_blocks(starts, e, block):
  return (starts[e + 1] - starts[e] + block - 1) // block


def _dot(a, b, dtype=None):
  """A @ b, accumulated in float32, in `dtype` or the type of `a`."""
  out = jnp.dot(a, b, preferred_element_type=jnp.float32)
  return out.astype(dtype or a.dtype)
