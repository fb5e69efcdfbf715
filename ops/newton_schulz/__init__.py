# SPDX-License-Identifier: Apache-2.0
"""Newton-Schulz orthogonalization of stacks of matrices."""

import jax
import jax.numpy as jnp

from ops import dispatch
from ops.newton_schulz import reference

ENGINES = (dispatch.Engine('xla', reference.newton_schulz),)


def newton_schulz(
  x: jax.Array, *, steps: int = 5, dtype: jnp.dtype | None = None
) -> jax.Array:
  """Replaces each matrix U S V^T by about U V^T.

  The quintic of Jordan et al. (2024), "Muon": its singular values land in
  about [0.7, 1.2], which is enough for an optimizer.

  Args:
    x: [..., m, n] stack of matrices, each treated alone.
    steps: iterations.
    dtype: type of the iteration; None: that of `x`.

  Returns:
    [..., m, n] in the type of `x`.

  Raises:
    ValueError: if `x` has fewer than two dimensions.
  """
  if x.ndim < 2:
    raise ValueError(f'newton_schulz: needs [..., m, n], got {x.shape}.')
  options = {'steps': steps, 'dtype': dtype or x.dtype}
  run = dispatch.select('newton_schulz', ENGINES, x, **options)
  with jax.named_scope('newton_schulz'):  # Found in profiles and programs.
    return run(x, **options)
