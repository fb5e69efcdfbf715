# SPDX-License-Identifier: Apache-2.0
"""Experts of a few tokens, where reading the matrices is all the time.

Arguments are those of `ops.expert_mlp_rows`: matrices are [out, in], as a GPU
reads such rows three times as fast for one token. Up to `PICKED` tokens each
read the matrices of their own expert; more of them meet all experts at once,
which costs a memory-bound program nothing as long as nearly every expert has a
token.
"""

import jax
import jax.numpy as jnp

from ops.experts import reference

PICKED = 4
DENSE = 256


def picked(x_TD, expert_T, gate_up_EFD, down_EDF) -> jax.Array:
  """Each token alone through its expert; [T, D] float32."""
  experts = gate_up_EFD.shape[0]
  rows = []
  for t in range(x_TD.shape[0]):
    # The skip class reads some expert, and what it gives is dropped.
    e = jnp.minimum(expert_T[t], experts - 1)
    h = _dot('D,FD->F', x_TD[t], _pick(gate_up_EFD, e))
    a = reference.swiglu(h).astype(x_TD.dtype)
    y = _dot('F,DF->D', a, _pick(down_EDF, e))
    rows.append(jnp.where(expert_T[t] < experts, y, 0))
  return jnp.stack(rows)


def dense(x_TD, expert_T, gate_up_EFD, down_EDF) -> jax.Array:
  """All tokens through all experts, of which one counts; [T, D] float32."""
  h_ETF = _dot('TD,EFD->ETF', x_TD, gate_up_EFD)
  experts = jnp.arange(gate_up_EFD.shape[0], dtype=expert_T.dtype)
  mine_ET = expert_T[None] == experts[:, None]
  # Zeroed before the second product, which then sums over experts as well.
  a_ETF = jnp.where(mine_ET[..., None], reference.swiglu(h_ETF), 0)
  return _dot('ETF,EDF->TD', a_ETF.astype(x_TD.dtype), down_EDF)


def _pick(w_EFD, e):
  return jax.lax.dynamic_index_in_dim(w_EFD, e, keepdims=False)


def _dot(equation, a, b):
  return jnp.einsum(equation, a, b, preferred_element_type=jnp.float32)
