# SPDX-License-Identifier: Apache-2.0
"""Where the gradients of the experts of all layers go, without a copy.

Each layer's gradient could be an array of its own, and all be stacked, and the
stack be added to that of other parts of a batch: two passes over the memory of
all experts. Instead the stack is handed from layer to layer on the way back,
and each writes its slice of it, or adds to that. It travels as the gradient of
arrays that layers only hand on. Matrices themselves get no gradient.

Axis letters: N layers, E experts, D width, F inner width of an expert.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class Stacks(NamedTuple):
  """The gradients of all layers, or in the forward pass what has their types.

  Attributes:
    gate_up: [N, E, D, 2F], in the type of the gradients.
    down: [N, E, F, D].
  """

  gate_up: jax.Array
  down: jax.Array


class Sink(NamedTuple):
  """Where a layer's gradients go.

  Attributes:
    stacks: of which only the gradient is meant.
    at: [2] int32, the layer, and whether to add to what is there: 0 or 1.
  """

  stacks: Stacks
  at: jax.Array


def put(stack: jax.Array, at: jax.Array, part: jax.Array) -> jax.Array:
  """The stack after `part` was written to, or added at, `Sink.at`."""
  layer, add = at[0], at[1]
  old = jax.lax.dynamic_index_in_dim(stack, layer, keepdims=False)
  part = part.astype(stack.dtype)
  if stack.dtype == jnp.float32:  # What is narrower is written once.
    part = jnp.where(add > 0, old, 0) + part
  return jax.lax.dynamic_update_index_in_dim(stack, part, layer, 0)


@jax.custom_vjp
def tap(
  gate_up: jax.Array, down: jax.Array, sink: Sink
) -> tuple[jax.Array, jax.Array, Stacks]:
  """The matrices of a layer, whose gradients go to the sink.

  For engines of which no kernel writes there itself.
  """
  return gate_up, down, sink.stacks


def _tap_fwd(gate_up, down, sink):
  return tap(gate_up, down, sink), sink.at


def _tap_bwd(at, gradients):
  *parts, stacks = gradients
  stacks = Stacks(*(put(s, at, p) for s, p in zip(stacks, parts, strict=True)))
  return None, None, Sink(stacks, None)


tap.defvjp(_tap_fwd, _tap_bwd)


@jax.custom_vjp
def begin(x: jax.Array, stacks: Stacks, first: Stacks) -> jax.Array:
  """X; on the way back the stacks begin as `first`.

  Args:
    x: what is made of the last layer.
    stacks: as it handed them on.
    first: of the types of `stacks`: gradients so far, or anything.
  """
  del stacks, first
  return x


def _begin_fwd(x, stacks, first):
  del stacks
  return x, first


def _begin_bwd(first, dx):
  return dx, first, None


begin.defvjp(_begin_fwd, _begin_bwd)
