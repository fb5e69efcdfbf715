# SPDX-License-Identifier: Apache-2.0
"""ZAYA1's router: a narrow MLP with memory across layers, in float32."""

import jax

from ops import dispatch
from ops.router import triton, xla
from ops.triton import backend

ENGINES = (
  backend.engine(triton.router, triton.unsupported, triton.slower),
  dispatch.Engine('xla', xla.router),
)


def router(
  h_BLD: jax.Array,
  previous_BLR: jax.Array,
  down_DR: jax.Array,
  down_bias_R: jax.Array,
  eda_R: jax.Array,
  norm_R: jax.Array,
  fc1_RR: jax.Array,
  fc1_bias_R: jax.Array,
  fc2_RR: jax.Array,
  fc2_bias_R: jax.Array,
  out_RX: jax.Array,
  balance_X: jax.Array,
  *,
  eps: float,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
  """Which class each token chooses, and with which weight.

  `state = h @ down + bias + eda * previous`; its RMSNorm goes through two
  layers with the exact GELU and a third one to logits. The largest of
  `softmax(logits) + balance` is chosen, and weighs what it has without
  `balance`. Products are exact in float32, but that with `down` for bfloat16
  tokens, where `down` has 16 bits. So have gradients, for bfloat16 tokens.

  Axis letters: B sequences, L positions, D width of the tokens, R router width,
  X classes.

  Args:
    h_BLD: [B, L, D] tokens.
    previous_BLR: [B, L, R] state of the layer before; float32, as is all else.
    down_DR: [D, R].
    down_bias_R: [R].
    eda_R: [R], what the state of the layer before is multiplied by.
    norm_R: [R], what the normed state is multiplied by.
    fc1_RR: [R, R], inputs first, as are all matrices.
    fc1_bias_R: [R].
    fc2_RR: [R, R].
    fc2_bias_R: [R].
    out_RX: [R, X].
    balance_X: [X]; it has no gradient.
    eps: added to the mean square.

  Returns:
    The choice [B, L] int32, its probability [B, L], all probabilities
    [B, L, X], and the state [B, L, R].

  Raises:
    ValueError: if the shapes do not fit.
  """
  inputs = (
    *(h_BLD, previous_BLR, down_DR, down_bias_R, eda_R, norm_R, fc1_RR),
    *(fc1_bias_R, fc2_RR, fc2_bias_R, out_RX, balance_X),
  )
  _check(*inputs)
  run = dispatch.select('router', ENGINES, *inputs, eps=eps)
  with jax.named_scope('router'):
    return run(*inputs, eps=eps)


def _check(h_BLD, *rest):
  (r, x), d = rest[-2].shape, h_BLD.shape[-1]
  shapes = {
    'previous': (*h_BLD.shape[:2], r),
    'down': (d, r),
    'down_bias': (r,),
    'eda': (r,),
    'norm': (r,),
    'fc1': (r, r),
    'fc1_bias': (r,),
    'fc2': (r, r),
    'fc2_bias': (r,),
    'out': (r, x),
    'balance': (x,),
  }
  for (name, shape), array in zip(shapes.items(), rest, strict=True):
    if array.shape != shape:
      raise ValueError(
        f'router: {name} is {array.shape}; with tokens {h_BLD.shape} and out '
        f'{(r, x)} it must be {shape}.'
      )
