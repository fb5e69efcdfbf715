# SPDX-License-Identifier: Apache-2.0
"""ZAYA1's residual merge and the RMSNorm after it."""

import jax
import jax.numpy as jnp

from ops import dispatch
from ops.residual_rms_norm import hip, reference, triton

ENGINES = (
  dispatch.Engine('hip', hip.residual_rms_norm, hip.unsupported, ('rocm',)),
  dispatch.Engine(
    'triton', triton.residual_rms_norm, triton.unsupported, platforms=('cuda',)
  ),
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
  *,
  eps: float,
  dtype: jnp.dtype,
) -> tuple[jax.Array, jax.Array]:
  """`new = (branch + b_h) * s_h + (x + b_r) * s_r`, and RMSNorm of it.

  Both results have gradients. All arithmetic is in float32.

  Args:
    branch_TD: [..., D] what attention or experts add.
    x_TD: [..., D] residual stream.
    branch_scale_D: s_h, [D] as are all vectors.
    branch_bias_D: b_h.
    residual_scale_D: s_r.
    residual_bias_D: b_r.
    norm_scale_D: what the normed stream is multiplied by.
    eps: added to the mean square.
    dtype: of the second result.

  Returns:
    The new residual stream [..., D], float32, and the normed one in `dtype`.

  Raises:
    ValueError: if the shapes do not fit.
  """
  shape = x_TD.shape
  vectors = (
    *(branch_scale_D, branch_bias_D, residual_scale_D, residual_bias_D),
    norm_scale_D,
  )
  if branch_TD.shape != shape or {v.shape for v in vectors} != {shape[-1:]}:
    raise ValueError(
      f'residual_rms_norm: branch {branch_TD.shape}, x {shape} and vectors '
      f'{[v.shape for v in vectors]} do not fit.'
    )
  rows = (branch_TD.reshape(-1, shape[-1]), x_TD.reshape(-1, shape[-1]))
  options = {'eps': eps, 'dtype': jnp.dtype(dtype)}
  run = dispatch.select(
    'residual_rms_norm', ENGINES, *rows, *vectors, **options
  )
  with jax.named_scope('residual_rms_norm'):
    new_TD, normed_TD = run(*rows, *vectors, **options)
  return new_TD.reshape(shape), normed_TD.reshape(shape)
