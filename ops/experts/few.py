# SPDX-License-Identifier: Apache-2.0
"""Experts of a few tokens, where reading the matrices is all the time.

Arguments are those of `ops.expert_mlp_rows`: matrices are [out, in], as a GPU
reads such rows three times as fast for one token. Up to `PICKED` tokens each
read the matrices of their own expert; more of them meet all experts at once,
which costs a memory-bound program nothing as long as nearly every expert has a
token. Matrices may be packed (`ops.experts.packed`).
"""

import jax
import jax.numpy as jnp

from ops.experts import packed, reference

PICKED = 4
DENSE = 256


def picked(x_TD, expert_T, gate_up_EFD, down_EDF) -> jax.Array:
  """Each token alone through its expert; [T, D] float32."""
  experts = gate_up_EFD.shape[0]
  rows = []
  for t in range(x_TD.shape[0]):
    # The skip class reads some expert, and what it gives is dropped.
    e = jnp.minimum(expert_T[t], experts - 1)
    h = packed.dot(x_TD[t], packed.pick(gate_up_EFD, e))
    a = reference.swiglu(h).astype(x_TD.dtype)
    y = packed.dot(a, packed.pick(down_EDF, e))
    rows.append(jnp.where(expert_T[t] < experts, y, 0))
  return jnp.stack(rows)


def dense(x_TD, expert_T, gate_up_EFD, down_EDF) -> jax.Array:
  """All tokens through all experts, of which one counts; [T, D] float32."""
  narrow, scale_EF = _scale_last(gate_up_EFD, x_TD.dtype)
  h_ETF = _dot('TD,EFD->ETF', x_TD, narrow)
  if scale_EF is not None:
    h_ETF *= scale_EF[:, None]
  experts = jnp.arange(gate_up_EFD.shape[0], dtype=expert_T.dtype)
  mine_ET = expert_T[None] == experts[:, None]
  # Zeroed before the second product, which then sums over experts as well.
  a_ETF = jnp.where(mine_ET[..., None], reference.swiglu(h_ETF), 0)
  narrow, scale_ED = _scale_last(down_EDF, x_TD.dtype)
  y_TD = _dot('ETF,EDF->TD', a_ETF.astype(x_TD.dtype), narrow)
  if scale_ED is not None:
    # One expert counts for each token; without one the result is zero.
    y_TD *= scale_ED.at[expert_T].get(mode='clip')
  return y_TD


def _scale_last(w, dtype):
  """Matrices for a product in `dtype`, and by what to multiply its outputs."""
  exact = isinstance(w, packed.Packed) and w.values.dtype == jnp.int8
  if not exact or w.scale.shape[-1] > 1:
    return packed.widen(w, dtype), None
  return w.values.astype(dtype), w.scale[..., 0].astype(jnp.float32)


def _dot(equation, a, b):
  return jnp.einsum(equation, a, b, preferred_element_type=jnp.float32)
