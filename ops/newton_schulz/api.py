# SPDX-License-Identifier: Apache-2.0
"""Newton-Schulz with symmetric products by a kernel, whichever engine has it.

Of A = X X^T and of P = aI + bA + cA^2 one triangle is computed, P in one
kernel; what is left of a step is one plain product, P X, which XLA has.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from ops import dispatch
from ops.newton_schulz import coefficients as coefficients_lib
from ops.newton_schulz import gram as gram_lib
from ops.newton_schulz import reference

# Elements of a stack that are iterated at once: 64 matrices of 2048 x 2048,
# enough to fill any GPU. Temporaries are four times that, 2.1 GB in 16 bits.
CHUNK = 64 * 2048 * 2048
# Types in which X is not divided by its norm in a pass of its own: products of
# it are. float16 does not hold factors that small or large.
FOLDED = ('bfloat16', 'float32')
# Rows of a Gram matrix from which on its triangle is worth a kernel.
SMALL = 1024


def not_half(dtype: jnp.dtype) -> str | None:
  """Why kernels for 16-bit floats cannot run."""
  if jnp.dtype(dtype).name in ('bfloat16', 'float16'):
    return None
  return f'iterates in bfloat16 or float16, not {dtype}'


def slower(x: jax.Array, **options) -> str | None:
  """Where XLA's products are faster."""
  short, long = sorted(x.shape[-2:])
  wide = long >= gram_lib.ASPECT * short
  if options.get('gram') and wide and short < SMALL:
    return f'XLA is faster on Gram matrices of less than {SMALL} rows'
  return dispatch.wide(jax.ShapeDtypeStruct((), options['dtype']))


def newton_schulz(
  x: jax.Array,
  product: gram_lib.Product,
  multiples: Callable[[int, int, jnp.dtype], tuple[int, int]],
  *,
  steps: int,
  dtype: jnp.dtype,
  coefficients: str = 'jordan',
  gram: bool = False,
) -> jax.Array:
  """See `ops.newton_schulz`.

  Args:
    x: matrices.
    product: the engine's kernel.
    multiples: (rows, columns, type) of its arguments -> what these are to be
      multiples of.
    steps: see `ops.newton_schulz`, as the rest.
    dtype: of the iteration.
    coefficients: name of a table.
    gram: whether by Gram matrices.
  """
  *_, m, n = x.shape
  if not x.size:
    return x
  schedule = coefficients_lib.schedule(coefficients, steps)

  def orthogonalize(x_BMN):
    # XLA may have the last product write into its place of the stack: it must
    # not read that, so of few steps X is copied.
    many = len(schedule) > gram_lib.FIRST
    scale_B = None
    if many and x_BMN.dtype == dtype and dtype.name in FOLDED:
      scale_B = 1 / reference.norm(x_BMN)[:, 0, 0]
    else:
      x_BMN = reference.normalize(x_BMN, dtype)
    y_BMN = _iterate(x_BMN, scale_B, schedule, gram, product, multiples)
    return y_BMN.astype(x.dtype)

  x_BMN, tall = reference.wide(x.reshape(-1, m, n))
  y_BMN = _in_chunks(orthogonalize, x_BMN, max(1, CHUNK // (m * n)))
  return (y_BMN.mT if tall else y_BMN).reshape(x.shape)


def _iterate(x, scale, schedule, gram, product, multiples):
  """The steps of [B, N, K], which meets `scale`, [B] or None, on the way."""
  _, n, depth = x.shape
  rows, columns = multiples(n, depth, x.dtype)
  # Zeros around X stay zeros: a multiplies them.
  pads = -n % rows, -depth % columns
  if any(pads):
    x = jnp.pad(x, ((0, 0), (0, pads[0]), (0, pads[1])))
  if gram and depth >= gram_lib.ASPECT * n:
    x = gram_lib.iterate(x, schedule, product, _matmul, scale)
  else:
    for a, b, c in schedule:
      gram_BNN = product(x, x, None, gram_lib.square(scale))
      factor = product(
        *(gram_BNN, gram_BNN, gram_BNN, scale), alpha=c, beta=b, diagonal=a
      )
      x, scale = _matmul(factor, x), None
  return x[:, :n, :depth]


def _in_chunks(function, x, most):
  """Function of [most, ...] and what is left, each in its place in `x`."""
  count = -(-x.shape[0] // most)
  size = -(-x.shape[0] // count)

  def replace(x, start, size):
    part = jax.lax.dynamic_slice_in_dim(x, start, size)
    return jax.lax.dynamic_update_slice_in_dim(x, function(part), start, 0)

  if count == 1:
    return function(x)
  whole = x.shape[0] // size
  x = jax.lax.fori_loop(0, whole, lambda i, x: replace(x, i * size, size), x)
  left = x.shape[0] - whole * size
  return replace(x, whole * size, left) if left else x


def _matmul(a, b):
  # GPUs sum in float32 whatever the result; asked for it, XLA:ROCm would write
  # and read a float32 result, and convert it in a second pass.
  return jnp.matmul(a, b, preferred_element_type=a.dtype)
