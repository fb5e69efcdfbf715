# SPDX-License-Identifier: Apache-2.0
"""What the products for Hopper GPUs mean, in jax.numpy."""

import jax
import jax.numpy as jnp

from ops.cross_entropy.hopper import exponentials as cross_entropy
from ops.experts.hopper import products
from ops.hopper import persistent, warp_groups


def up(x_PD, gate_up_EDG, expert_B, first, *, save):
  """See `products.up`."""
  h_PG = _sums(x_PD, gate_up_EDG, expert_B, first)
  gate, up_ = jnp.split(h_PG, 2, axis=1)
  sigmoid = jax.nn.sigmoid(gate)
  silu = gate * sigmoid
  slopes = up_ * (sigmoid * (1 + gate - silu)), silu
  found = [silu * up_, jnp.concatenate(slopes, axis=1)][: 1 + save]
  return [x.astype(x_PD.dtype) for x in found]


def matmul(x_PK, w, expert_B, first, *, transposed=False):
  """See `products.matmul`."""
  w = w.swapaxes(1, 2) if transposed else w
  return _sums(x_PK, w, expert_B, first).astype(x_PK.dtype)


def d_up(dy_PK, w_ENK, slopes_PG, expert_B, first):
  """See `products.d_up`."""
  da_PF = _sums(dy_PK, w_ENK.swapaxes(1, 2), expert_B, first)
  dh_PG = jnp.concatenate([da_PF, da_PF], axis=1) * slopes_PG
  return dh_PG.astype(dy_PK.dtype)


def d_weights(x_PK, dy_PN, first):
  """See `products.d_weights`."""
  row_P = jnp.arange(x_PK.shape[0])
  begin_E, end_E = (edge * products.ROWS for edge in (first[:-1], first[1:]))
  mine_EP = (row_P[None] >= begin_E[:, None]) & (row_P[None] < end_E[:, None])
  mine = jnp.where(mine_EP[..., None], x_PK[None], 0).astype(jnp.float32)
  # Rows behind the last block may hold anything.
  dy_PN = jnp.where((row_P < end_E[-1])[:, None], dy_PN, 0)
  return jnp.einsum('EPK,PN->EKN', mine, dy_PN.astype(jnp.float32)).astype(
    x_PK.dtype
  )


def _sums(x_PK, w_EKN, expert_B, first):
  """Float32; NaN where a kernel writes nothing."""
  w_BKN = w_EKN[expert_B].astype(jnp.float32)
  x_BMK = x_PK.reshape(-1, products.ROWS, x_PK.shape[1]).astype(jnp.float32)
  y_BMN = jnp.einsum('BMK,BKN->BMN', x_BMK, w_BKN)
  written_B = jnp.arange(expert_B.size) < first[-1]
  y_BMN = jnp.where(written_B[:, None, None], y_BMN, jnp.nan)
  return y_BMN.reshape(x_PK.shape[0], -1)


def symmetric_matmul(
  a, b, c=None, scale=None, *, alpha=1.0, beta=0.0, diagonal=0.0
):
  """See `ops.newton_schulz.triton`."""
  assert not any(size % persistent.COLUMNS for size in a.shape[1:])
  y = alpha * (a.astype(jnp.float32) @ b.astype(jnp.float32).mT)
  if c is not None:
    y += beta * c.astype(jnp.float32)
  y += diagonal * jnp.eye(y.shape[-1])[None]
  return (y if scale is None else y * scale[:, None, None]).astype(a.dtype)


def exponentials(x_TD, head_VD, shift_T, *, save):
  """See `ops.cross_entropy.hopper`."""
  assert not len(x_TD) % (2 * warp_groups.ROWS)
  assert not any(size % persistent.STEP for size in head_VD.shape)
  assert len(head_VD) >= persistent.COLUMNS
  z_TV = x_TD.astype(jnp.float32) @ head_VD.astype(jnp.float32).mT
  z_TV -= shift_T[:, None]
  e_TV = jnp.exp(jnp.minimum(z_TV, cross_entropy.MOST))
  return e_TV.astype(x_TD.dtype) if save else None, jnp.sum(e_TV, axis=1)
