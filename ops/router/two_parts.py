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
  wide_DF = jnp.concatenate(parts(w_DF), axis=1)
  return halves(dot('BLD,DF->BLF', x_BLD, wide_DF))


def _linear_fwd(x_BLD, w_DF):
  return linear(x_BLD, w_DF), (x_BLD, w_DF)


def _linear_bwd(saved, dy_BLF):
  x_BLD, w_DF = saved
  high, low = parts(dy_BLF)
  dw_DF = dot('BLD,BLF->DF', x_BLD, jnp.concatenate([high, low], axis=-1))
  # Sums are float32; of a float32 result the layer would read twice the bytes.
  return _back(high, low, w_DF, x_BLD.dtype), halves(dw_DF)


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
  return gradients(x_BLD, w_DF, dy_BLF)


gradients_of.defvjp(_gradients_of_fwd, _gradients_of_bwd)


def gradients(
  x_BLD: jax.Array, w_DF: jax.Array, dy_BLF: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """Those of float32 `x` and `w` where that of `x @ w` is `dy`."""
  x_high, x_low = parts(x_BLD)
  high, low = parts(dy_BLF)
  dw_DF = d_weights(
    jnp.concatenate([x_high, x_low], axis=-1),
    jnp.concatenate([high, low], axis=-1),
  )
  return _back(high, low, w_DF, x_BLD.dtype), dw_DF


def d_weights(x_BLD: jax.Array, dy_BLF: jax.Array) -> jax.Array:
  """[D, F] float32, x^T @ dy; of both the parts side by side, 2D and 2F."""
  # All four products of parts in one; that of both rests is left out.
  each = dot('BLD,BLF->DF', x_BLD, dy_BLF)
  d, f = (x.shape[-1] // 2 for x in (x_BLD, dy_BLF))
  return each[:d, :f] + each[:d, f:] + each[d:, :f]


def _back(high, low, w_DF, dtype):
  """[B, L, D] dy @ w^T of the parts of dy."""
  # The product of what both roundings left is below the last bit.
  dy_BLF = jnp.concatenate([high, low, high], axis=-1)
  return dot('BLF,DF->BLD', dy_BLF, back_matrix(w_DF), dtype)


def back_matrix(w_DF: jax.Array) -> jax.Array:
  """[D, 3F] bfloat16: what parts (high, low, high) of a gradient multiply."""
  high, low = parts(w_DF)
  return jnp.concatenate([high, high, low], axis=1)


def parts(x: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Float32 as its rounding to bfloat16 and that of what it leaves."""
  # Or XLA may take it that rounding there and back leaves what was.
  rounded = jax.lax.reduce_precision(x, exponent_bits=8, mantissa_bits=7)
  return rounded.astype(jnp.bfloat16), (x - rounded).astype(jnp.bfloat16)


def halves(x: jax.Array) -> jax.Array:
  """The sum of both halves along the last axis."""
  half = x.shape[-1] // 2
  return x[..., :half] + x[..., half:]


def dot(
  axes: str, a: jax.Array, b: jax.Array, dtype: jnp.dtype = jnp.float32
) -> jax.Array:
  """A product with sums in float32, in `dtype`."""
  return jnp.einsum(axes, a, b, preferred_element_type=dtype)
