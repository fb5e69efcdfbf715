# SPDX-License-Identifier: Apache-2.0
"""What the kernels of `ops.residual_rms_norm` share: what is saved, and sums.

Besides the inputs 1 / rms of each row is saved; the new stream is computed
again. Going back a kernel leaves parts of sums over rows, of which the vectors'
gradients are made here.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp


class Kernels(NamedTuple):
  """Those of an engine.

  Attributes:
    forward: (options, *inputs) -> both results, and 1 / rms of each row.
    backward: (options, inputs and 1 / rms, gradients of both results) ->
      gradients of the branch and of the stream, and [parts, 4, D] float32 to be
      summed over the parts: that of the merged stream, its products with the
      branch and with the stream, and that of the normed one with its unit; of
      a branch that is weighed also the gradient of the weights.
  """

  forward: Callable[..., Any]
  backward: Callable[..., Any]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def merge_and_norm(
  kernels: Kernels, options: Any, *inputs: jax.Array | None
) -> tuple[jax.Array, jax.Array]:
  """Both results of `ops.residual_rms_norm`, of its arrays as [T, D] and [T].

  `options` are static, for the kernels.
  """
  return _forward_rule(kernels, options, *inputs)[0]


def _forward_rule(kernels, options, *inputs):
  *results, rstd_T = kernels.forward(options, *inputs)
  return tuple(results), (*inputs, rstd_T)


def _backward_rule(kernels, options, saved, cotangents):
  d_branch, d_x, parts, *d_weight = kernels.backward(options, saved, cotangents)
  _, _, s_h, b_h, s_r, b_r, *_ = saved
  total, of_branch, of_x, of_normed = jnp.sum(parts, axis=0)
  d_vectors = (
    of_branch + b_h * total,
    s_h * total,
    of_x + b_r * total,
    s_r * total,
    of_normed,
  )
  places = None, None
  return d_branch, d_x, *d_vectors, *(d_weight or [None]), *places


merge_and_norm.defvjp(_forward_rule, _backward_rule)
