# SPDX-License-Identifier: Apache-2.0
"""Products of tokens with a float32 matrix, by bfloat16 products.

A float32 number is the sum of two of bfloat16, its rounding and what that
leaves, to 16 bits; TF32, in which GPUs multiply float32 unless told, has 11.
Two products in bfloat16 are faster than one in TF32, for which XLA also makes
the tokens float32.

Axis letters: B sequences, L positions, D width of the tokens, F of the result.
"""

import jax
import jax.numpy as jnp

from ops.once import once


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
  dw_DF = _dot('BLD,BLF->DF', x_BLD, jnp.concatenate([high, low], axis=-1))
  # Sums are float32; of a float32 result the layer would read twice the bytes.
  return _back(high, low, w_DF, x_BLD.dtype), _halves(dw_DF)


linear.defvjp(_linear_fwd, _linear_bwd)


@jax.custom_vjp
def gradients_of(x_BLD: jax.Array, w_DF: jax.Array) -> jax.Array:
  """X @ w of float32, exactly; its gradients by bfloat16 products.

  What decides routes is float32, whose products run beside the matrix units.
  Gradients decide nothing: to 16 bits they take less than half of the time.

  Args:
    x_BLD: [B, L, D] float32.
    w_DF: [D, F] float32.

  Returns:
    [B, L, F] float32, as are the gradients.
  """
  exact = jax.lax.Precision.HIGHEST
  return once(jnp.einsum('BLD,DF->BLF', x_BLD, w_DF, precision=exact))


def _gradients_of_fwd(x_BLD, w_DF):
  return gradients_of(x_BLD, w_DF), (x_BLD, w_DF)


def _gradients_of_bwd(saved, dy_BLF):
  x_BLD, w_DF = saved
  x_high, x_low = _parts(x_BLD)
  high, low = _parts(dy_BLF)
  # All four products of parts in one; that of both rests is left out.
  each = _dot(
    'BLD,BLF->DF',
    jnp.concatenate([x_high, x_low], axis=-1),
    jnp.concatenate([high, low], axis=-1),
  )
  d, f = w_DF.shape
  dw_DF = each[:d, :f] + each[:d, f:] + each[d:, :f]
  return _back(high, low, w_DF, x_BLD.dtype), dw_DF


gradients_of.defvjp(_gradients_of_fwd, _gradients_of_bwd)


def _back(high, low, w_DF, dtype):
  """[B, L, D] dy @ w^T of the parts of dy."""
  w_high, w_low = _parts(w_DF)
  # The product of what both roundings left is below the last bit.
  dy_BLF = jnp.concatenate([high, low, high], axis=-1)
  wide_DF = jnp.concatenate([w_high, w_high, w_low], axis=1)
  return _dot('BLF,DF->BLD', dy_BLF, wide_DF, dtype)


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
