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
_FIRST, _EVERY = 2, 3


# (a, b, c, alpha=1, beta=0, diagonal=0) -> alpha a b^T + beta c + diagonal I,
# of what is known to be symmetric; c may be left out.
Product = Callable[..., jax.Array]


def iterate(
  x: jax.Array,
  steps: coefficients.Steps,
  symmetric: Product,
  matmul: Callable[[jax.Array, jax.Array], jax.Array],
) -> jax.Array:
  """X after the steps.

  Args:
    x: [..., n, m], n <= m.
    steps: their coefficients.
    symmetric: product with a symmetric result.
    matmul: (a, b) -> a b.
  """
  gram, q = symmetric(x, x), None
  for i, (a, b, c) in enumerate(steps):
    if i >= _FIRST and (i - _FIRST) % _EVERY == 0:
      x = matmul(q, x)
      gram, q = symmetric(x, x), None
    z = symmetric(gram, gram, gram, alpha=c, beta=b, diagonal=a)
    q = z if q is None else symmetric(q, z)
    last = i + 1 == len(steps) or (i + 1 - _FIRST) % _EVERY == 0
    if not last:
      gram = symmetric(symmetric(z, gram), z)
  return x if q is None else matmul(q, x)
