# SPDX-License-Identifier: Apache-2.0
"""ZAYA1's residual merge and the RMSNorm after it."""

import jax
import jax.numpy as jnp

from ops import dispatch
from ops.residual_rms_norm import hip, reference, triton
from ops.triton import backend

ENGINES = (
  dispatch.Engine('hip', hip.residual_rms_norm, hip.unsupported, ('rocm',)),
  backend.engine(triton.residual_rms_norm, triton.unsupported),
  dispatch.Engine('xla', reference.residual_rms_norm),
)


def residual_rms_norm(
  branch_TD: jax.Array,
  x_TD: jax.Array,
  branch_scale_D: jax.Array,
  branch_bias_D: jax.Array,
  residual_scale_D: jax.Array,
  residual_bias_D: jax.Array,
  norm_scale_D: jax.Array,
  weight_T: jax.Array | None = None,
  row_T: jax.Array | None = None,
  spare_Q: jax.Array | None = None,
  *,
  eps: float,
  dtype: jnp.dtype,
) -> tuple[jax.Array, jax.Array]:
  """`new = (branch + b_h) * s_h + (x + b_r) * s_r`, and RMSNorm of it.

  Both results have gradients. All arithmetic is in float32. With the three last
  arrays, which come together, `branch[row[t]] * weight[t]` stands for the
  branch of token t: experts need not put their results back into the order of
  the tokens.

  Args:
    branch_TD: [..., D] what attention or experts add; with `row_T` [P, D].
    x_TD: [..., D] residual stream.
    branch_scale_D: s_h, [D] as are all vectors.
    branch_bias_D: b_h.
    residual_scale_D: s_r.
    residual_bias_D: b_r.
    norm_scale_D: what the normed stream is multiplied by.
    weight_T: [...] float32.
    row_T: [...] int32 in [0, P], each row once; P: a branch of zeros.
    spare_Q: [Q] int32 in [0, P], rows of no token, whose gradient is to be
      zero; P: none. That of a row which is in neither may be anything.
    eps: added to the mean square.
    dtype: of the second result.

  Returns:
    The new residual stream [..., D], float32, and the normed one in `dtype`.

  Raises:
    ValueError: if the shapes do not fit.
  """
  shape, rows = x_TD.shape, (-1, x_TD.shape[-1])
  vectors = (
    *(branch_scale_D, branch_bias_D, residual_scale_D, residual_bias_D),
    norm_scale_D,
  )
  taken = _flat(weight_T), _flat(row_T), spare_Q
  _check(branch_TD, x_TD, vectors, weight_T, row_T, spare_Q)
  inputs = (
    *(branch_TD.reshape(rows), x_TD.reshape(rows)),
    *(*vectors, *taken),
  )
  options = {'eps': eps, 'dtype': jnp.dtype(dtype)}
  run = dispatch.select('residual_rms_norm', ENGINES, *inputs, **options)
  with jax.named_scope('residual_rms_norm'):
    new_TD, normed_TD = run(*inputs, **options)
  return new_TD.reshape(shape), normed_TD.reshape(shape)


def _flat(a):
  return a if a is None else a.reshape(-1)


def _check(branch, x, vectors, weight, row, spare):
  if weight is None and row is None and spare is None:
    fits = branch.shape == x.shape
  elif weight is None or row is None or spare is None:
    fits = False
  else:
    fits = branch.shape == (branch.shape[0], x.shape[-1])
    fits &= weight.shape == row.shape == x.shape[:-1]
  if not fits or {v.shape for v in vectors} != {x.shape[-1:]}:
    raise ValueError(
      f'residual_rms_norm: branch {branch.shape}, x {x.shape} and vectors '
      f'{[v.shape for v in vectors]} do not fit.'
    )
