# SPDX-License-Identifier: Apache-2.0
"""Newton-Schulz orthogonalization of stacks of matrices."""

import jax
import jax.numpy as jnp

from ops import dispatch
from ops.newton_schulz import api, hip, hopper, reference, triton
from ops.newton_schulz import coefficients as coefficients_lib
from ops.triton import backend

ENGINES = (
  dispatch.Engine('hip', hip.newton_schulz, hip.unsupported, ('rocm',)),
  dispatch.Engine(
    'hopper',
    hopper.newton_schulz,
    hopper.unsupported,
    platforms=('cuda',),
    slower=api.slower,
  ),
  backend.engine(triton.newton_schulz, triton.unsupported, api.slower),
  dispatch.Engine('xla', reference.newton_schulz),
)


def newton_schulz(
  x: jax.Array,
  *,
  steps: int = 5,
  dtype: jnp.dtype | None = None,
  coefficients: str = 'jordan',
  gram: bool = False,
) -> jax.Array:
  """Replaces each matrix U S V^T by about U V^T.

  A polynomial of fifth degree of the singular values, `steps` times. With the
  coefficients of Jordan et al. (2024), "Muon", they land in about [0.7, 1.2],
  which is enough for an optimizer.

  Args:
    x: [..., m, n] stack of matrices, each treated alone.
    steps: iterations.
    dtype: type of the iteration, sums are float32; None: that of `x`. float16
      costs what bfloat16 does and is about eight times as accurate.
    coefficients: a name in `coefficients.TABLE`.
    gram: whether matrices with one side at least twice the other are iterated
      by their Gram matrix, which is less work and a little less accurate.

  Returns:
    [..., m, n] in the type of `x`.

  Raises:
    ValueError: if `x` has fewer than two dimensions, or there are no such
      coefficients.
  """
  if x.ndim < 2:
    raise ValueError(f'newton_schulz: needs [..., m, n], got {x.shape}.')
  coefficients_lib.schedule(coefficients, steps)
  options = {
    'steps': steps,
    'dtype': jnp.dtype(dtype or x.dtype),
    'coefficients': coefficients,
    'gram': gram,
  }
  run = dispatch.select('newton_schulz', ENGINES, x, **options)
  with jax.named_scope('newton_schulz'):  # Found in profiles and programs.
    return run(x, **options)
