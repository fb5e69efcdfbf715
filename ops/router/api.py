# SPDX-License-Identifier: Apache-2.0
"""What the kernels of `ops.router` share: parts of matrices, what is saved.

Products of float32 run on the matrix units by parts. Going forward a number is
two of float16, 22 bits of it: that has few exponents, so that all is multiplied
by powers of two, for which bounds are known. Going back it is two of bfloat16,
16 bits. Products with `down`, and those over all tokens, are XLA's.

Axis letters: T tokens, D their width, R router width, X classes, Z classes that
a kernel has (`Z >= X`, zeros behind), P programs.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ops.once import once
from ops.router import reference, two_parts


class Matrices(NamedTuple):
  """Of what parts are made, all float32.

  Attributes:
    down: [D, R].
    norm: [R], what the rows of `fc1` are multiplied by.
    fc1: [R, R].
    fc1_bias: [R].
    fc2: [R, R].
    out: [R, X].
  """

  down: jax.Array
  norm: jax.Array
  fc1: jax.Array
  fc1_bias: jax.Array
  fc2: jax.Array
  out: jax.Array


class Weights(NamedTuple):
  """Matrices by parts; bfloat16 unless told.

  Attributes:
    down: [D, 2R] parts side by side.
    fc1: [2, R, R] float16, parts of `norm * fc1` times a power of two.
    fc2: [2, R, R] float16 likewise.
    out: [2, R, Z] float16 likewise.
    factors: [5] float32: what the product with `fc1` is multiplied by; what the
      GELU behind it is before it is taken apart, and one over that; what those
      with `fc2` and `out` are multiplied by.
    back_down: [D, 3R], what parts (high, low, high) of a gradient multiply.
    back_fc1: [2, R, R] parts of `norm * fc1` transposed.
    back_fc2: [2, R, R] likewise.
    back_out: [2, Z, R] likewise.
  """

  down: jax.Array
  fc1: jax.Array
  fc2: jax.Array
  out: jax.Array
  factors: jax.Array
  back_down: jax.Array
  back_fc1: jax.Array
  back_fc2: jax.Array
  back_out: jax.Array


class Forward(NamedTuple):
  """What a kernel reads going forward, all float32 unless told.

  Attributes:
    wide: [T, 2R], the product with both parts of `down`, to be added.
    previous: [T, R].
    vectors: [R] each: bias of `down`, `eda`, biases of `fc1` and `fc2`.
    balance: [X].
    fc1, fc2, out, factors: of `Weights`.
  """

  wide: jax.Array
  previous: jax.Array
  vectors: tuple[jax.Array, ...]
  balance: jax.Array
  fc1: jax.Array
  fc2: jax.Array
  out: jax.Array
  factors: jax.Array


class Backward(NamedTuple):
  """What a kernel reads going back, all float32 unless told.

  Attributes:
    d_logits: [T, Z].
    d_state: [T, R].
    state: [T, R].
    previous: [T, R].
    z1: [T, R], what goes into the first GELU.
    z2: [T, R], into the second one.
    eda: [R].
    fc1, fc2, out: of `Weights`, those with `back_`.
  """

  d_logits: jax.Array
  d_state: jax.Array
  state: jax.Array
  previous: jax.Array
  z1: jax.Array
  z2: jax.Array
  eda: jax.Array
  fc1: jax.Array
  fc2: jax.Array
  out: jax.Array


class Gradients(NamedTuple):
  """What a kernel writes going back.

  Parts are bfloat16, side by side along the last axis.

  Attributes:
    three: [T, 3R] parts (high, low, high) of the gradient of the state.
    two: [T, 2R] parts (high, low) of it.
    d_previous: [T, R] float32.
    unit: [T, 2R] parts of the normed state, without `norm`.
    dz1: [T, 2R] parts.
    a1: [T, 2R] parts of the GELU of z1.
    dz2: [T, 2R] parts.
    sums: [P, 4, R] float32, to be summed over P: dz1, dz2, the gradient of the
      state, and its product with the state of the layer before.
    d_out: [P, R, Z] float32 likewise.
  """

  three: jax.Array
  two: jax.Array
  d_previous: jax.Array
  unit: jax.Array
  dz1: jax.Array
  a1: jax.Array
  dz2: jax.Array
  sums: jax.Array
  d_out: jax.Array


class Kernels(NamedTuple):
  """Those of an engine.

  Attributes:
    weights: `Matrices` -> `Weights`.
    forward: (`Forward`, eps) -> choice [T] int32, weight [T], probabilities
      [T, X], state [T, R], z1 and z2 [T, R].
    backward: (`Backward`, eps) -> `Gradients`.
  """

  weights: Callable[[Matrices], Weights]
  forward: Callable[[Forward, float], Sequence[jax.Array]]
  backward: Callable[[Backward, float], Gradients]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def route(kernels: Kernels, eps: float, *inputs: jax.Array) -> Any:
  """The results of `ops.router`, of its inputs with a leading axis of one."""
  return _forward_rule(kernels, eps, *inputs)[0]


def _forward_rule(kernels, eps, *inputs):
  (
    h,
    previous,
    down,
    down_bias,
    eda,
    norm,
    fc1,
    fc1_bias,
    fc2,
    fc2_bias,
    *rest,
  ) = inputs
  out, balance = rest
  made = kernels.weights(Matrices(down, norm, fc1, fc1_bias, fc2, out))
  weights = Weights(*once(tuple(made)))
  given = Forward(
    two_parts.dot('BLD,DF->BLF', h, weights.down)[0],
    previous[0],
    (down_bias, eda, fc1_bias, fc2_bias),
    balance,
    *(weights.fc1, weights.fc2, weights.out, weights.factors),
  )
  found = once(tuple(kernels.forward(given, eps)))
  choice, weight, probs, state, z1, z2 = found
  results = choice[None], weight[None], probs[None], state[None]
  return results, (inputs, weights, choice, probs, state, z1, z2)


def classes(x: int) -> int:
  """How many a kernel has: products want 16, and powers of two."""
  return max(16, 1 << (x - 1).bit_length())


def unit_power(r: int) -> int:
  """By 2 to this a normed state, sqrt(R) at most, still is a float16."""
  return 15 - math.ceil(math.log2(r) / 2)


def exponent(x: jax.Array) -> jax.Array:
  """The least e with x < 2^e, int32; no more than 60 from 0."""
  bits = jax.lax.bitcast_convert_type(x, jnp.int32)
  return jnp.clip((bits >> 23) - 126, -60, 60)


def power_of_two(e: jax.Array | int) -> jax.Array:
  """2^e exactly, which XLA's exponentials are not."""
  bits = jnp.asarray(e + 127, jnp.int32) << 23
  return jax.lax.bitcast_convert_type(bits, jnp.float32)


def _backward_rule(kernels, eps, saved, cotangents):
  inputs, weights, choice, probs, state, z1, z2 = saved
  h, previous, _, _, eda, norm, fc1, _, fc2, _, out, balance = inputs
  _, d_weight, d_probs, d_state = cotangents
  hit = reference.chosen(choice[None], out.shape[1])[0]
  d_probs = d_probs[0] + jnp.where(hit, d_weight[0][:, None], 0)
  mean = jnp.sum(probs * d_probs, axis=1, keepdims=True)
  d_logits = probs * (d_probs - mean)
  padding = (0, 0), (0, classes(out.shape[1]) - out.shape[1])
  found = kernels.backward(
    Backward(
      jnp.pad(d_logits, padding),
      *(d_state[0], state, previous[0], z1, z2, eda),
      *(weights.back_fc1, weights.back_fc2, weights.back_out),
    ),
    eps,
  )
  found = Gradients(*once(tuple(found)))
  d_fc1_bias, d_fc2_bias, d_bias, d_eda = jnp.sum(found.sums, axis=0)
  d_unit_fc1 = two_parts.d_weights(found.unit[None], found.dz1[None])
  d_h = two_parts.dot(
    'BLF,DF->BLD', found.three[None], weights.back_down, h.dtype
  )
  d_down = two_parts.dot('BLD,BLF->DF', h, found.two[None])
  return (
    d_h,
    found.d_previous[None],
    two_parts.halves(d_down),
    d_bias,
    d_eda,
    jnp.sum(fc1 * d_unit_fc1, axis=1),
    norm[:, None] * d_unit_fc1,
    d_fc1_bias,
    two_parts.d_weights(found.a1[None], found.dz2[None]),
    d_fc2_bias,
    jnp.sum(found.d_out, axis=0)[:, : out.shape[1]],
    jnp.zeros_like(balance),
  )


route.defvjp(_forward_rule, _backward_rule)
