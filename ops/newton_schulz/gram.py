# SPDX-License-Identifier: Apache-2.0
"""The iteration on A = X X^T alone: less work where X is wide.

With Z = aI + bA + cA^2 a step takes X to ZX, hence A to ZAZ. The factors Z of
some steps are multiplied up in Q, and X meets their product once. All of these
are polynomials of one symmetric matrix: symmetric, and they commute. Rounding
ends that, and grows, so X is made, and A anew from it, after two steps and then
every three, as in Dao AI Lab's Gram Newton-Schulz. (Without, values of 84 came
out of bfloat16 where 1 was due.) In between Q stays below 50.
"""

from collections.abc import Callable

import jax

from ops.newton_schulz import coefficients

# Sides at least this far apart make it pay: 13 against 17.5 n^3 at two, in five
# steps with symmetric products, and 10 against 10 for a square matrix.
ASPECT = 2
FIRST, _EVERY = 2, 3  # Steps to the first X, and from each to the next.


# (a, b, c, scale, alpha=1, beta=0, diagonal=0) -> scale (alpha a b^T + beta c +
# diagonal I), of what is known to be symmetric; c and scale, a number for each
# matrix, may be left out.
Product = Callable[..., jax.Array]


def square(scale: jax.Array | None) -> jax.Array | None:
  """What A = X X^T is multiplied by where X is by `scale`."""
  return None if scale is None else scale * scale


def iterate(
  x: jax.Array,
  steps: coefficients.Steps,
  symmetric: Product,
  matmul: Callable[[jax.Array, jax.Array], jax.Array],
  scale: jax.Array | None = None,
) -> jax.Array:
  """X after the steps.

  Args:
    x: [..., n, m], n <= m.
    steps: their coefficients; at least one where there is a scale.
    symmetric: product with a symmetric result.
    matmul: (a, b) -> a b.
    scale: of each matrix of `x`, float32; multiplied in where it costs nothing.
  """
  gram, q = symmetric(x, x, None, square(scale)), None
  for i, (a, b, c) in enumerate(steps):
    if i >= FIRST and (i - FIRST) % _EVERY == 0:
      x = matmul(q, x)
      gram, q, scale = symmetric(x, x), None, None
    last = i + 1 == len(steps) or (i + 1 - FIRST) % _EVERY == 0
    own, end = q is None, scale if last else None
    z = symmetric(
      *(gram, gram, gram, end if own else None), alpha=c, beta=b, diagonal=a
    )
    q = z if own else symmetric(q, z, None, end)
    if not last:
      gram = symmetric(symmetric(z, gram), z)
  return x if q is None else matmul(q, x)
