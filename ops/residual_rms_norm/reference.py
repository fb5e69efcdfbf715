# SPDX-License-Identifier: Apache-2.0
"""The meaning of `ops.residual_rms_norm`, and its engine in plain XLA."""

import jax
import jax.numpy as jnp


def residual_rms_norm(branch_TD, x_TD, *more, eps, dtype):
  """See `ops.residual_rms_norm`."""
  (*merge, norm_scale_D), taken = more[:5], more[5:]
  if any(a is not None for a in taken):
    branch_TD = take(branch_TD, *taken)
  new = _affine(branch_TD, *merge[:2]) + _affine(x_TD, *merge[2:])
  mean_square = jnp.mean(jnp.square(new), axis=-1, keepdims=True)
  normed = new * jax.lax.rsqrt(mean_square + eps) * _row(norm_scale_D, new)
  return new, normed.astype(dtype)


def take(branch_PD, weight_T, row_T, spare_Q):
  """[..., D] float32: each token's row, times its weight."""
  del spare_Q
  rows_TD = branch_PD.at[row_T].get(mode='fill', fill_value=0)
  return rows_TD * weight_T[..., None]


def _affine(x_TD, scale_D, bias_D):
  # At least float32; float64 where a test asks for it.
  x_TD = x_TD.astype(jnp.promote_types(x_TD.dtype, jnp.float32))
  return (x_TD + _row(bias_D, x_TD)) * _row(scale_D, x_TD)


def _row(vector_D, x_TD):
  return vector_D.reshape((1,) * (x_TD.ndim - 1) + vector_D.shape)
