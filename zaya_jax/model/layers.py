# SPDX-License-Identifier: Apache-2.0
"""Small layers that several blocks share: norm, rotary table, residual merge.

Axis letters: B sequences, L positions, D residual width.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

import ops
from ops import dispatch
from ops.once import once
from zaya_jax import config as config_lib


class BalanceBias(nnx.Variable):
  """The router's balancing bias: state that no gradient reaches."""


def normal(rngs: nnx.Rngs, std: float, *shape: int) -> nnx.Param:
  """A float32 parameter drawn from a normal distribution."""
  return nnx.Param(std * jax.random.normal(rngs.params(), shape, jnp.float32))


def constant(value: float, *shape: int) -> nnx.Param:
  """A float32 parameter of one value."""
  return nnx.Param(jnp.full(shape, value, jnp.float32))


def compute_dtype(config: config_lib.ModelConfig) -> jnp.dtype:
  """The type of matrix products: bfloat16 on accelerators unless named."""
  if config.dtype != 'auto':
    return jnp.dtype(config.dtype)
  cpu = dispatch.platform() == 'cpu'
  return jnp.dtype(jnp.float32 if cpu else jnp.bfloat16)


def linear(
  x_BLD: jax.Array,
  w: nnx.Param | jax.Array,
  bias: nnx.Param | jax.Array | None = None,
  precision: jax.lax.Precision | None = None,
) -> jax.Array:
  """X @ w + bias in the type of `x`, accumulated in float32."""
  w = w[...].astype(x_BLD.dtype)
  # No preferred_element_type: JAX would multiply in that type going back.
  out = once(jnp.einsum('BLD,DF->BLF', x_BLD, w, precision=precision))
  if bias is None:
    return out
  out = out.astype(jnp.float32) + bias[...][None, None]
  return out.astype(x_BLD.dtype)


def rms_norm(
  x_BLD: jax.Array,
  scale: nnx.Param | jax.Array,
  eps: float,
  dtype: jnp.dtype | None = None,
) -> jax.Array:
  """X / sqrt(mean(x^2) + eps) * scale over the last axis, in float32.

  Args:
    x_BLD: [B, L, D].
    scale: [D].
    eps: added to the mean square.
    dtype: type of the result; None: float32.
  """
  x = x_BLD.astype(jnp.float32)
  mean_square = jnp.mean(jnp.square(x), axis=-1, keepdims=True)
  out = x * jax.lax.rsqrt(mean_square + eps) * scale[...][None, None]
  return out.astype(dtype or jnp.float32)


def rope_table(
  positions_BL: jax.Array, d_rope: int, theta: float
) -> tuple[jax.Array, jax.Array]:
  """Cosines and sines of the rotary embedding, [B, L, d_rope] float32.

  The angle of channel pair i at position t is t * `rope_frequency`[i].
  """
  frequency = rope_frequency(d_rope, theta)
  angle = positions_BL[..., None].astype(jnp.float32) * frequency[None, None]
  angle = jnp.concatenate([angle, angle], axis=-1)
  return jnp.cos(angle), jnp.sin(angle)


def rope_frequency(d_rope: int, theta: float) -> jax.Array:
  """theta^(-2i / d_rope) of each channel pair i, [d_rope / 2] float32."""
  exponent = jnp.arange(0, d_rope, 2, dtype=jnp.float32) / max(d_rope, 1)
  return theta**-exponent


_VECTORS = ('branch_scale', 'branch_bias', 'residual_scale', 'residual_bias')


class ResidualMerge(nnx.Module):
  """(branch + b_h) * s_h + (residual + b_r) * s_r, four vectors of D."""

  def __init__(self, d_model: int, learned: bool = True):
    self._learned = learned
    self.branch_scale = constant(1.0, d_model)
    self.branch_bias = constant(0.0, d_model)
    self.residual_scale = constant(1.0, d_model)
    self.residual_bias = constant(0.0, d_model)

  def then_norm(
    self,
    branch_BLD: jax.Array,
    x_BLD: jax.Array,
    scale_D: jax.Array,
    eps: float,
    taken: tuple[jax.Array, ...] = (),
  ) -> tuple[jax.Array, jax.Array]:
    """The new residual stream, and its RMSNorm in the type of the branch.

    Args:
      branch_BLD: [B, L, D], or [P, D] where there is `taken`.
      x_BLD: [B, L, D] float32 residual stream.
      scale_D: of the norm.
      eps: added to the mean square.
      taken: weights and places of the branch's rows, of `moe.Experts.weighed`.
    """
    vectors = [self._vector(name) for name in _VECTORS]
    arrays: list[Any] = [branch_BLD, x_BLD, *vectors, scale_D, *taken]
    return ops.residual_rms_norm(*arrays, eps=eps, dtype=branch_BLD.dtype)

  def _vector(self, name):
    vector = getattr(self, name)[...]
    return vector if self._learned else jax.lax.stop_gradient(vector)


def merge(
  vectors: Mapping[str, Any], branch_BLD: jax.Array, x_BLD: jax.Array
) -> jax.Array:
  """`ResidualMerge` of these vectors."""
  branch = affine(branch_BLD, vectors['branch_scale'], vectors['branch_bias'])
  return branch + affine(
    x_BLD, vectors['residual_scale'], vectors['residual_bias']
  )


def affine(
  x_BLD: jax.Array, scale: jax.Array | nnx.Param, bias: jax.Array | nnx.Param
) -> jax.Array:
  """(x + bias) * scale in float32: the bias is added first."""
  x = x_BLD.astype(jnp.float32) + bias[...][None, None]
  return x * scale[...][None, None]
