# SPDX-License-Identifier: Apache-2.0
"""What the kernels of `ops.cca_prologue` share: values, and what is saved.

Going back, the norm comes first and leaves its gradient in memory, because a
convolution wants it at several lags; then come the gradient of z, and that of
the convolution's kernel in parts, which are summed here. Values are only
copied: forward XLA does.

Kernels read queries and keys out of the projections where they are, and leave
their gradient where that of the projections is; that of the values comes behind
it: no slice and no concatenation of [B, L, Z] is in memory.

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
    forward: (projections, kernel, bias, temperature, cos, sin, segments) ->
      queries, keys and what going back needs: keys before their temperature
      ('unit') and what the norm multiplied by ('scale', [B, G, L] float32).
    unnormalize: (queries, unit, scale, kernel, temperature, cos, sin, gradients
      of queries and keys) -> the gradients before the norm [B, L, Z], of the
      bias [Z] and of the temperature [K] float32.
    backward: (projections, that of `unnormalize`, kernel, temperature,
      segments) -> the gradient [B, L, P] of the projections, with anything
      behind the first Z, and [parts, *kernel] float32 to be summed over the
      parts.
    of_values: (gradients of the values [B, L, 2X] and of the projections,
      kernel, temperature, segments) -> the latter, whole.
  """

  forward: Callable[..., Sequence[jax.Array]]
  unnormalize: Callable[..., tuple[jax.Array, ...]]
  backward: Callable[..., tuple[jax.Array, jax.Array]]
  of_values: Callable[..., jax.Array]


def cca_prologue(
  kernels: Kernels, *inputs: Any
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """See `ops.cca_prologue`."""
  channels = inputs[1].shape[1]
  heads = lambda x: x.reshape(*x.shape[:2], -1, channels)
  q, k, v = _prologue(kernels, *inputs)
  return heads(q), heads(k), heads(v)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _prologue(kernels, *inputs):
  return _forward_rule(kernels, *inputs)[0]


def _forward_rule(kernels, *inputs):
  *inputs, first = inputs
  projected, kernel, _, *more = inputs
  q, k, unit, scale = kernels.forward(*inputs)
  _, current, delayed = reference.split(projected, kernel)
  v = reference.values(current, delayed, more[-1], first)
  return (q, k, v), (projected, kernel, *more, first, q, unit, scale)


def _backward_rule(kernels, saved, cotangents):
  (projected, kernel, temperature, *tables, segments, first), found = (
    saved[:7],
    saved[7:],
  )
  *cotangents, dv = cotangents
  dy, d_bias, d_temperature = kernels.unnormalize(
    *(*found, kernel, temperature, *tables, *cotangents)
  )
  d_projected, parts = kernels.backward(
    projected, dy, kernel, temperature, segments
  )
  d_kernel = jnp.sum(parts, axis=0).astype(kernel.dtype)
  d_projected = kernels.of_values(
    dv, d_projected, kernel, temperature, segments
  )
  _, current, delayed = reference.split(projected, kernel)
  _, back = jax.vjp(
    lambda first: reference.values(current, delayed, segments, first), first
  )
  (d_first,) = back(dv)
  nothing = [None] * 3  # Of both tables and the segments.
  return d_projected, d_kernel, d_bias, d_temperature, *nothing, d_first


_prologue.defvjp(_forward_rule, _backward_rule)
