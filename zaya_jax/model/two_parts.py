# SPDX-License-Identifier: Apache-2.0
"""A product of bfloat16 tokens with a float32 matrix, by bfloat16 products.

A float32 number is the sum of two of bfloat16, its rounding and what that
leaves, to 16 bits; TF32, in which GPUs multiply float32 unless told, has 11.
Two products in bfloat16 are faster than one in TF32, for which XLA also makes
the tokens float32.

Axis letters: B sequences, L positions, D width of the tokens, F of the result.
"""

import jax
import jax.numpy as jnp


@jax.custom_vjp
def linear(x_BLD: jax.Array, w_DF: jax.Array) -> jax.Array:
  """X @ w.

  Args:
    x_BLD: [B, L, D] bfloat16.
    w_DF: [D, F] float32.

  Returns:
    [B, L, F] float32. The gradient of `x` is rounded to bfloat16 once, that of
    `w` is float32.
  """
  wide_DF = jnp.concatenate(_parts(w_DF), axis=1)
  return _halves(_dot('BLD,DF->BLF', x_BLD, wide_DF))


def _linear_fwd(x_BLD, w_DF):
  return linear(x_BLD, w_DF), (x_BLD, w_DF)


def _linear_bwd(saved, dy_BLF):
  x_BLD, w_DF = saved
  high, low = _parts(dy_BLF)
  w_high, w_low = _parts(w_DF)
  dw_DF = _dot('BLD,BLF->DF', x_BLD, jnp.concatenate([high, low], axis=-1))
  # The product of what both roundings left is below the last bit.
  dy_BLF = jnp.concatenate([high, low, high], axis=-1)
  wide_DF = jnp.concatenate([w_high, w_high, w_low], axis=1)
  # Sums are float32; of a float32 result the layer would read twice the bytes.
  dx_BLD = _dot('BLF,DF->BLD', dy_BLF, wide_DF, x_BLD.dtype)
  return dx_BLD, _halves(dw_DF)


linear.defvjp(_linear_fwd, _linear_bwd)


def _parts(x):
  high = x.astype(jnp.bfloat16)
  # Or XLA may take it that rounding there and back leaves what was.
  rounded = jax.lax.reduce_precision(x, exponent_bits=8, mantissa_bits=7)
  return high, (x - rounded).astype(jnp.bfloat16)


def _halves(x):
  half = x.shape[-1] // 2
  return x[..., :half] + x[..., half:]


def _dot(axes, a, b, dtype=jnp.float32):
  return jnp.einsum(axes, a, b, preferred_element_type=dtype)
