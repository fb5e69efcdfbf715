# SPDX-License-Identifier: Apache-2.0
"""Between the projections of CCA and its attention: all but matrix products."""

import jax

from ops import dispatch
from ops.cca import hopper, reference, triton

ENGINES = (
  dispatch.Engine(
    'hopper', hopper.cca_prologue, hopper.unsupported, platforms=('cuda',)
  ),
  dispatch.Engine(
    'triton', triton.cca_prologue, triton.unsupported, platforms=('cuda',)
  ),
  dispatch.Engine('xla', reference.cca_prologue),
)


def cca_prologue(
  z_BLZ: jax.Array,
  current_BLX: jax.Array,
  delayed_BLX: jax.Array,
  kernel_GCX: jax.Array,
  bias_Z: jax.Array,
  temperature_K: jax.Array,
  cos_BLR: jax.Array,
  sin_BLR: jax.Array,
  segments_BL: jax.Array | None = None,
  first_X: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Queries, keys and values of compressed convolutional attention.

  Queries and keys are convolved over time, the mean of each query with its key
  is added, each head gets the length sqrt(C), keys are multiplied by a
  temperature, and the first R channels of each head are rotated by position.
  Half of the value channels come from the token before. Nothing crosses from
  one segment to another.

  Axis letters: B sequences, L positions, H query heads, K key/value heads, C
  channels of a head, G = H + K groups, Z = G * C, X = K * C / 2.

  Args:
    z_BLZ: [B, L, Z] projections, query heads first, then key heads.
    current_BLX: [B, L, X] value projections of the token itself.
    delayed_BLX: [B, L, X] those that the next token takes.
    kernel_GCX: [G, C in, lags * C out] float32, newest lag first: of
      `reference.joint_kernel`, as is the bias.
    bias_Z: [Z].
    temperature_K: [K].
    cos_BLR: [B, L, R] float32; both halves along R are the same. No gradient.
    sin_BLR: as `cos_BLR`.
    segments_BL: [B, L] int, the document of each token; None: one each row.
    first_X: [X] what stands before the first token of a segment as delayed
      projection; None: zero.

  Returns:
    Queries [B, L, H, C], keys and values [B, L, K, C], in the type of `z`.

  Raises:
    ValueError: if the shapes do not fit.
  """
  groups, channels, mixed = kernel_GCX.shape
  kv_heads = len(temperature_K)
  heads = groups - kv_heads
  fits = z_BLZ.shape[-1] == groups * channels and mixed % channels == 0
  if not fits or heads < 1 or heads % kv_heads:
    raise ValueError(
      f'cca_prologue: z {z_BLZ.shape}, kernel {kernel_GCX.shape} and '
      f'{kv_heads} key heads do not fit.'
    )
  inputs = (
    *(z_BLZ, current_BLX, delayed_BLX, kernel_GCX, bias_Z, temperature_K),
    *jax.lax.stop_gradient((cos_BLR, sin_BLR)),
    *(segments_BL, first_X),
  )
  run = dispatch.select('cca', ENGINES, *inputs)
  with jax.named_scope('cca_prologue'):
    return run(*inputs)
