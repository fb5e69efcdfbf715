# SPDX-License-Identifier: Apache-2.0
"""`ops.router` in Triton: a kernel behind the product with `down`, one back.

Another one takes the matrices of both apart.

A program has some tokens and all channels. It goes over the hidden channels of
the MLP in chunks, as attention goes over keys: none of its matrices needs to
fit.
"""

import jax
import jax.numpy as jnp

from ops import dispatch
from ops.router import api
from ops.router.triton import backward, forward, weights

WIDTHS = (64, 128, 256)  # On a GPU.
# Both passes over 65,536 tokens on an H200: 0.79 ms, XLA 0.90; of width 256
# the kernels take longer than XLA.
_FASTER = 128
_CLASSES = 64


def unsupported(h_BLD, previous_BLR, *rest, eps) -> str | None:
  """Why not."""
  del eps
  r, x = rest[-2].shape
  tokens = h_BLD.shape[0] * h_BLD.shape[1]
  if h_BLD.dtype != jnp.bfloat16:
    return f'it takes bfloat16 tokens, not {h_BLD.dtype}'
  if previous_BLR.dtype != jnp.float32:
    return f'it takes a float32 state, not {previous_BLR.dtype}'
  if dispatch.platform() != 'cpu' and r not in WIDTHS:
    return f'a router width of {r} is none of {WIDTHS}'
  if r < 16 or r & (r - 1):
    return f'a router width of {r} is no power of two from 16'
  if x > _CLASSES:
    return f'{x} classes are more than {_CLASSES}'
  rows = [kernel.tile(r).m for kernel in (forward, backward)]
  if tokens == 0 or tokens % max(rows):
    return f'{tokens} tokens are no multiple of {max(rows)}'
  if 3 * tokens * r >= 2**31:
    return f'{tokens} tokens are more than 32 bits can count'
  return None


def slower(_, previous_BLR, *__, **___) -> str | None:
  """Why XLA is faster."""
  r = previous_BLR.shape[-1]
  return None if r == _FASTER else f'faster at a router width of {_FASTER}'


def router(
  h_BLD: jax.Array, previous_BLR: jax.Array, *rest: jax.Array, eps: float
) -> tuple[jax.Array, ...]:
  """See `ops.router`."""
  b, length, _ = h_BLD.shape
  rows = lambda x: x.reshape(1, b * length, x.shape[2])
  # A model that only predicts may keep them in 16 bits.
  rest = tuple(jnp.asarray(w, jnp.float32) for w in rest)
  found = api.route(_KERNELS, eps, rows(h_BLD), rows(previous_BLR), *rest)
  return tuple(x.reshape(b, length, *x.shape[2:]) for x in found)


_KERNELS = api.Kernels(weights.weights, forward.forward, backward.backward)
