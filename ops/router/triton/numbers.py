# SPDX-License-Identifier: Apache-2.0
"""What both kernels do with single numbers and tiles."""

import math

import jax
import jax.numpy as jnp

from ops import dispatch
from ops.triton.backend import plgpu

_LOG2_E = math.log2(math.e)


def load(ref, row, column):
  """A tile of the last two axes of `ref`."""
  return plgpu.load(ref.at[row[:, None], column[None]])


def store(ref, row, column, value):
  """Likewise."""
  plgpu.store(ref.at[row[:, None], column[None]], value.astype(ref.dtype))


def load_parts(ref, row, column):
  """A tile of both parts of a matrix."""
  tiles = (ref.at[jnp.int32(i), row[:, None], column[None]] for i in (0, 1))
  return tuple(plgpu.load(tile) for tile in tiles)


def store_parts(ref, row, column, parts):
  """Parts side by side along the last axis of `ref`."""
  width = ref.shape[1] // len(parts)
  for i, part in enumerate(parts):
    store(ref, row, i * width + column, part)


def wait_for_writes():
  """Threads may then read what others of the program wrote."""
  if dispatch.platform() != 'cpu':
    plgpu.debug_barrier()


def dot_again(ref, row, weight_ref, hidden, k):
  """`dot` of both parts that this program wrote to `ref` with a matrix.

  They lie side by side. What was computed multiplies from registers, of which
  wide parts leave too few for all else; what was read, from shared memory.

  Args:
    ref: [T, 2R], written before `wait_for_writes`.
    row: of the tile.
    weight_ref: [2, R, N] parts of the matrix.
    hidden: its columns.
    k: so many of R are read at a time.
  """
  width = ref.shape[1] // 2
  total = None
  for first in range(0, width, k):
    column = first + jnp.arange(k, dtype=jnp.int32)
    own = tuple(load(ref, row, i * width + column) for i in range(2))
    total = dot(own, load_parts(weight_ref, column, hidden), total)
  return total


def parts(x, dtype):
  """The rounding of float32, and that of what it leaves."""
  high = x.astype(dtype)
  return high, (x - high.astype(jnp.float32)).astype(dtype)


def dot(a, b, start=None, *, axis=1):
  """`start` + a @ b by parts, without that of what both leave.

  Args:
    a: parts of the left side.
    b: parts of the right side.
    start: float32, or None for zero.
    axis: of `a` that is summed over.
  """
  (a_high, a_low), (b_high, b_low) = a, b
  # The smallest ones first.
  for left, right in ((a_low, b_high), (a_high, b_low), (a_high, b_high)):
    product = jax.lax.dot_general(
      left,
      right,
      (((axis,), (0,)), ((), ())),
      preferred_element_type=jnp.float32,
    )
    start = product if start is None else start + product
  return start


def gelu(x):
  """X * Phi(x)."""
  return 0.5 * x * (1 + erf(x * math.sqrt(0.5)))


def gelu_and_slope(x):
  """The GELU, and Phi(x) + x * phi(x)."""
  phi = 0.5 + 0.5 * erf(x * math.sqrt(0.5))
  density = jnp.exp2(x * x * (-0.5 * _LOG2_E)) / math.sqrt(2 * math.pi)
  return x * phi, phi + x * density


# Of erf(x) / x - 1 up to x = _BEND by x^2; beyond, of log(1 - erf(x)) / x. Both
# by N. Juffa's erff(), whose error is below one unit in the last place.
_BEND = 0.927734375
_NEAR = (
  *(-5.96761703e-4, 4.99119423e-3, -2.67681349e-2),
  *(1.12819925e-1, -3.76125336e-1, 1.28379166e-1),
)
_FAR = (
  *(-1.72853470e-5, 3.83197126e-4, -3.88396438e-3, 2.42546219e-2),
  *(-1.06777877e-1, -6.34846687e-1, -1.128717512),
)


def erf(x):
  """The error function; Triton of Pallas has none."""
  size = jnp.abs(x)
  near = x + x * _polynomial(_NEAR, x * x)
  # Beyond 4 the result is 1, of which the polynomial knows nothing.
  far = jnp.minimum(size, 4.0)
  far = 1 - jnp.exp2(_LOG2_E * far * _polynomial(_FAR, far))
  return jnp.where(size > _BEND, jnp.where(x < 0, -far, far), near)


def _polynomial(coefficients, x):
  found = jnp.full_like(x, coefficients[0])
  for each in coefficients[1:]:
    found = found * x + each
  return found
