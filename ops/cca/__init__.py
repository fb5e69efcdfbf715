# SPDX-License-Identifier: Apache-2.0
"""Between the projections of CCA and its attention: all but matrix products."""

import jax

from ops import dispatch
from ops.cca import hopper, reference, triton
from ops.triton import backend

ENGINES = (
  dispatch.Engine(
    'hopper', hopper.cca_prologue, hopper.unsupported, platforms=('cuda',)
  ),
  backend.engine(triton.cca_prologue, triton.unsupported, dispatch.wide),
  dispatch.Engine('xla', reference.cca_prologue),
)


def cca_prologue(
  projected_BLP: jax.Array,
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
  channels of a head, G = H + K groups, Z = G * C, X = K * C / 2, P = Z + 2 * X.

  Args:
    projected_BLP: [B, L, P] projections: Z of query heads, then key heads; X
      values of the token itself; X that the next token takes.
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
    Queries [B, L, H, C], keys and values [B, L, K, C], in the type of
    the projections.

  Raises:
    ValueError: if the shapes do not fit.
  """
  groups, channels, mixed = kernel_GCX.shape
  kv_heads = len(temperature_K)
  heads = groups - kv_heads
  width = (groups + kv_heads) * channels
  fits = projected_BLP.shape[-1] == width and mixed % channels == 0
  if not fits or heads < 1 or heads % kv_heads:
    raise ValueError(
      f'cca_prologue: projections {projected_BLP.shape}, kernel '
      f'{kernel_GCX.shape} and {kv_heads} key heads do not fit.'
    )
  inputs = (
    *(projected_BLP, kernel_GCX, bias_Z, temperature_K),
    *jax.lax.stop_gradient((cos_BLR, sin_BLR)),
    *(segments_BL, first_X),
  )
  run = dispatch.select('cca', ENGINES, *inputs)
  with jax.named_scope('cca_prologue'):
    return run(*inputs)
