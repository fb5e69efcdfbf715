# SPDX-License-Identifier: Apache-2.0
"""The meaning of `ops.expert_mlp`: every expert sees every token."""

import jax
import jax.numpy as jnp


def swiglu(h_TF: jax.Array) -> jax.Array:
  """silu(gate) * up of the fused [..., 2F] activations, gate first."""
  gate, up = jnp.split(h_TF, 2, axis=-1)
  return jax.nn.silu(gate) * up


def expert_mlp(x_TD, expert_T, gate_up_EDF, down_EFD) -> jax.Array:
  """See `ops.expert_mlp`; costs E times the work."""
  h_ETF = jnp.einsum('TD,EDF->ETF', x_TD, gate_up_EDF)
  y_ETD = jnp.einsum('ETF,EFD->ETD', swiglu(h_ETF), down_EFD)
  chosen_TE = jax.nn.one_hot(expert_T, gate_up_EDF.shape[0], dtype=x_TD.dtype)
  return jnp.einsum('ETD,TE->TD', y_ETD, chosen_TE)
