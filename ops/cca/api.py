# SPDX-License-Identifier: Apache-2.0
"""What the kernels of `ops.cca_prologue` share: values, and what is saved.

Going back, the norm comes first and leaves its gradient in memory, because a
convolution wants it at several lags; then come the gradient of z, and that of
the convolution's kernel in parts, which are summed here. Values are only
copied: XLA does.

Axis letters: those of `ops.cca_prologue`.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ops.cca import reference


class Kernels(NamedTuple):
  """Those of an engine.

  Attributes:
    forward: (z, kernel, bias, temperature, cos, sin, segments) -> queries, keys
      and what going back needs: keys before their temperature ('unit') and what
      the norm multiplied by ('scale', [B, G, L] float32).
    unnormalize: (queries, unit, scale, kernel, temperature, cos, sin, gradients
      of queries and keys) -> the gradients before the norm [B, L, Z], of the
      bias [Z] and of the temperature [K] float32.
    backward: (z, that of `unnormalize`, kernel, temperature, segments) -> the
      gradient of z, and [parts, *kernel] float32 to be summed over the parts.
  """

  forward: Callable[..., Sequence[jax.Array]]
  unnormalize: Callable[..., tuple[jax.Array, ...]]
  backward: Callable[..., tuple[jax.Array, jax.Array]]


def with_values(
  queries_and_keys: Callable[..., tuple[jax.Array, jax.Array]], *inputs: Any
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """See `ops.cca_prologue`, of a function for all but the values.

  That gets the inputs without those of the values.
  """
  z_BLZ, current_BLX, delayed_BLX, kernel_GCX, *more, first_X = inputs
  past_BLX = reference.delay(delayed_BLX, more[-1], first_X)
  v_BLX = jnp.concatenate([current_BLX, past_BLX], axis=-1)
  q_BLX, k_BLX = queries_and_keys(z_BLZ, kernel_GCX, *more)
  heads = lambda x: x.reshape(*x.shape[:2], -1, kernel_GCX.shape[1])
  return heads(q_BLX), heads(k_BLX), heads(v_BLX)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def queries_and_keys(
  kernels: Kernels, *inputs: Any
) -> tuple[jax.Array, jax.Array]:
  """Of `inputs` as those of `Kernels.forward`."""
  return _forward_rule(kernels, *inputs)[0]


def _forward_rule(kernels, *inputs):
  z, kernel, _, *more = inputs
  q, k, unit, scale = kernels.forward(*inputs)
  return (q, k), (z, kernel, *more, q, unit, scale)


def _backward_rule(kernels, saved, cotangents):
  z, kernel, temperature, cos, sin, segments, *found = saved
  dy, d_bias, d_temperature = kernels.unnormalize(
    *(*found, kernel, temperature, cos, sin, *cotangents)
  )
  dz, parts = kernels.backward(z, dy, kernel, temperature, segments)
  d_kernel = jnp.sum(parts, axis=0).astype(kernel.dtype)
  return dz, d_kernel, d_bias, d_temperature, None, None, None


queries_and_keys.defvjp(_forward_rule, _backward_rule)
