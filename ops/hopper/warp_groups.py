# SPDX-License-Identifier: Apache-2.0
"""Programs of three warp groups, and what they do to memory.

One has the copy engine fetch what the other two compute with.
"""

import math

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import mosaic_gpu as plgpu

from ops import dispatch

GROUPS = 2  # That compute; one more loads.
HALF = 64  # Rows of a block that each of them has.
ROWS = GROUPS * HALF  # Of a block.
LOADING, COMPUTING = 40, 232  # Registers of a thread.
LOG2_E = math.log2(math.e)  # The chip has exponentials to the base 2.
# Of shared memory that products read and copies fill: 128 bytes, the widest
# without bank conflicts.
PATTERN = (plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128))
BY_ROW = plgpu.Layout.WGMMA.reduce(1)  # A number for each row of a product.
BY_COLUMN = plgpu.Layout.WGMMA.reduce(0)


def unavailable() -> str | None:
  """Why such kernels cannot run on this machine."""
  if dispatch.platform() != 'cuda':
    return 'it is made of instructions of Hopper GPUs'
  found = getattr(jax.devices()[0], 'compute_capability', 'none')
  if found.split('.')[0] != '9':
    return f'it needs compute capability 9, a Hopper GPU; this one has {found}'
  return None


def divide(x, by: int):
  """Quotient and remainder; // and % ask about signs."""
  return lax.div(x, jnp.int32(by)), lax.rem(x, jnp.int32(by))


def load(ref, layout=BY_ROW):
  """Numbers of an array in global memory, in registers."""
  # A position that jax 0.10 asks for and 0.11 warns of.
  index = () if jax.__version_info__ >= (0, 11) else (None,)
  return plgpu.load(ref, *index, layout=layout, optimized=False)


def spread(x, shape, axis):
  """A number for each row (axis 0) or column (axis 1) to all of it."""
  return lax.broadcast_in_dim(x, shape, [axis])


def finish_reads():
  """Before a barrier lets the copy engine write where registers came from."""
  plgpu.commit_smem()
