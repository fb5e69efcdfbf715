# SPDX-License-Identifier: Apache-2.0
"""Matrices of 8- or 4-bit numbers with scales, and products with them.

Reading a matrix is all the time of a product with a few rows. So these are
written as one pass over the numbers: XLA makes each a kernel that reads bytes,
widens them in registers and adds in float32; nothing wide is ever in memory.
With more rows a matrix is widened to the type of the rows for a product of
XLA's library.

Axis letters: F outputs, D inputs, G groups of inputs with a scale each, T rows.
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp

from ops import dispatch

FEW = 4  # Rows up to which a product is a pass over the matrix for each.
OFFSET = 8  # What is added to a number of 4 bits where it is stored.


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Packed:
  """Matrices [..., F, D]: `scale[..., f, d // (D / G)] * number`.

  Attributes:
    values: [..., F, D] int8; or [..., F, D / 2] uint8: two numbers of -8 to 7 a
      byte, plus 8 each, the one of the even input in the lower half.
    scale: [..., F, G], of any floating type.
  """

  values: jax.Array
  scale: jax.Array

  @property
  def shape(self) -> tuple[int, ...]:
    """Of the matrices that are meant."""
    *lead, inputs = self.values.shape
    return (*lead, inputs * (2 if self.values.dtype == jnp.uint8 else 1))

  @property
  def ndim(self) -> int:
    """Of the matrices that are meant."""
    return self.values.ndim

  @property
  def size(self) -> int:
    """How many numbers it holds."""
    return math.prod(self.shape)

  @property
  def nbytes(self) -> int:
    """Bytes of numbers and scales."""
    return self.values.nbytes + self.scale.nbytes


Matrix = jax.Array | Packed


def widen(w: Matrix, dtype: Any) -> jax.Array:
  """[..., F, D] in `dtype`; each product with a scale is rounded once."""
  if not isinstance(w, Packed):
    return w.astype(dtype)
  *lead, _ = w.shape
  numbers = w.values
  if numbers.dtype == jnp.uint8:
    numbers = jnp.stack(_halves(numbers), axis=-1)
  groups = numbers.reshape(*lead, w.scale.shape[-1], -1)
  wide = groups.astype(jnp.float32) * w.scale[..., None].astype(jnp.float32)
  return wide.reshape(w.shape).astype(dtype)


def pick(w: Matrix, index: jax.Array) -> Matrix:
  """One of the matrices along the first axis, by a scalar."""
  one = lambda a: jax.lax.dynamic_index_in_dim(a, index, keepdims=False)
  return jax.tree.map(one, w)


def take(w: Matrix, rows: jax.Array, dtype: Any) -> jax.Array:
  """Rows of a matrix [F, D], by their numbers: [..., D] in `dtype`."""
  return widen(jax.tree.map(lambda a: a[rows], w), dtype)


def dot(x: jax.Array, w: Matrix) -> jax.Array:
  """X @ w^T: [..., D] by [F, D] to [..., F] float32."""
  if not isinstance(w, Packed):
    if x.size == x.shape[-1] and dispatch.platform() == 'rocm':
      # For its library's product XLA:ROCm would make a wide matrix float32.
      x_D = x.reshape(-1).astype(jnp.float32)
      out_F = jnp.sum(w.astype(jnp.float32) * x_D[None], axis=-1)
      return out_F.reshape(*x.shape[:-1], -1)
    return jnp.einsum('...D,FD->...F', x, w, preferred_element_type=jnp.float32)
  rows = x.reshape(-1, x.shape[-1])
  if len(rows) <= FEW:
    made = jnp.stack([_pass(row, w) for row in rows])
  elif w.values.dtype == jnp.int8 and w.scale.shape[-1] == 1:
    # In the type of `x` these numbers are exact, so scales may come last.
    made = dot(rows, w.values.astype(x.dtype)) * w.scale[None, :, 0]
  else:
    made = dot(rows, widen(w, x.dtype))
  return made.reshape(*x.shape[:-1], -1)


def join(parts: list[Matrix], dtype: Any) -> Matrix:
  """Matrices as one with all their outputs, packed if all of them are alike."""
  kinds = {
    (w.values.dtype, w.scale.dtype, w.scale.shape[-1])
    if isinstance(w, Packed)
    else None
    for w in parts
  }
  if len(kinds) > 1 or None in kinds:
    parts = [widen(w, dtype) for w in parts]
  return jax.tree.map(lambda *leaves: jnp.concatenate(leaves, -2), *parts)


def _pass(x_D, w):
  """[F] float32 of one row."""
  x_D = x_D.astype(jnp.float32)
  if w.values.dtype == jnp.int8:
    products_FX = w.values.astype(jnp.float32) * x_D[None]
  else:
    low_FX, high_FX = (a.astype(jnp.float32) for a in _halves(w.values))
    products_FX = low_FX * x_D[None, 0::2] + high_FX * x_D[None, 1::2]
  outputs, groups = w.scale.shape
  products_FGX = products_FX.reshape(outputs, groups, -1)
  scale_FG1 = w.scale[..., None].astype(jnp.float32)
  return jnp.sum(products_FGX * scale_FG1, axis=(1, 2))


def _halves(values):
  """The numbers of even and of odd inputs, int8."""
  number = lambda a: a.astype(jnp.int8) - OFFSET
  return number(values & 15), number(values >> 4)
