# SPDX-License-Identifier: Apache-2.0
"""Layers one after another, in a loop or written out."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


def run(
  layer: Callable[[Any, Any], tuple[Any, Any]],
  carry: Any,
  inputs: Any,
  *,
  loop: bool,
) -> tuple[Any, Any]:
  """`jax.lax.scan(layer, carry, inputs)`.

  Args:
    layer: (carry, inputs of a layer) -> (carry, outputs of a layer).
    carry: of the first layer.
    inputs: arrays with a leading axis of layers.
    loop: whether to compile one layer; else all of them are written out. A scan
      that is unrolled would do that too, but it puts what is saved for the
      backward pass, and the gradients, into stacks that are filled with zeros
      first.

  Returns:
    The carry of the last layer and the outputs, stacked.
  """
  if loop:
    return jax.lax.scan(layer, carry, inputs)
  layer = jax.jit(layer)  # Traced and lowered once.
  leaves, structure = jax.tree.flatten(inputs)
  outputs = []
  for layer_inputs in zip(*map(_unstack, leaves), strict=True):
    carry, output = layer(carry, jax.tree.unflatten(structure, layer_inputs))
    outputs.append(output)
  return carry, jax.tree.map(lambda *parts: jnp.stack(parts), *outputs)


@jax.custom_vjp
def _unstack(stack):
  """The parts; their gradients are stacked in one pass."""
  return tuple(stack)


def _unstack_fwd(stack):
  return tuple(stack), None


def _unstack_bwd(_, gradients):
  # Otherwise XLA re-stacks the gradients in every pass of the optimizer.
  return (jax.lax.optimization_barrier(jnp.stack(gradients)),)


_unstack.defvjp(_unstack_fwd, _unstack_bwd)
