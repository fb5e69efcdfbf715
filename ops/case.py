# SPDX-License-Identifier: Apache-2.0
"""Inputs of an operation, on which its engines are tested and timed."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

# Of what is compared, over the largest value expected: sums of some thousand
# products in float32, and one rounding to bfloat16 of an intermediate result.
TOLERANCE = {'float32': 2e-5, 'bfloat16': 2e-2}


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Case:
  """One set of shapes.

  Attributes:
    name: of the case.
    arguments: (random generator, dtype of what has the compute type) ->
      positional and named arguments of the operation.
    gradients: which positional arguments have a gradient.
    zaya: whether ZAYA1-8B has this shape: it is timed. Others are small, and
      awkward: they are tested.
    flops: the least operations of the value, and of value and gradients.
    bytes: the least bytes moved, likewise, in bfloat16 where that is the type.
    tolerance: dtype -> largest error, over the largest value of that output.
  """

  name: str
  arguments: Callable[
    [np.random.Generator, jnp.dtype], tuple[tuple[Any, ...], dict[str, Any]]
  ]
  gradients: tuple[int, ...] = ()
  zaya: bool = False
  flops: tuple[float, float] = (0, 0)
  bytes: tuple[float, float] = (0, 0)
  tolerance: Mapping[str, float] = dataclasses.field(
    default_factory=lambda: TOLERANCE
  )


def vjp(
  run: Callable[..., Any], which: tuple[int, ...], args: tuple[Any, ...]
) -> tuple[Any, Callable[[Any], tuple[Any, ...]]]:
  """`jax.vjp` of `run(*args)` by some of its arguments.

  Results that are integers have no gradient: any will do for them.

  Args:
    run: the function.
    which: positions of the arguments, as `Case.gradients`.
    args: all of them.
  """

  def value(*chosen):
    full = list(args)
    for index, array in zip(which, chosen, strict=True):
      full[index] = array
    return run(*full)

  out, back = jax.vjp(value, *(args[index] for index in which))
  return out, lambda cotangents: back(
    jax.tree.map(_without_integers, cotangents)
  )


def _without_integers(cotangent):
  if jnp.issubdtype(cotangent.dtype, jnp.floating):
    return cotangent
  return np.zeros(cotangent.shape, jax.dtypes.float0)


def with_gradients(
  run: Callable[..., Any], which: tuple[int, ...], args: tuple[Any, ...]
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
  """Value and gradients of some arguments, and what that is called with.

  Args:
    run: the function.
    which: positions of the arguments, as `Case.gradients`.
    args: all of them.

  Returns:
    A function: arguments -> (outputs, gradients), and its arguments.
  """

  def both(cotangent, *args):
    out, back = vjp(run, which, args)
    return out, back(cotangent)

  # Data, as what comes back from the layers behind: XLA would fold constants.
  rng = np.random.default_rng(1)
  cotangent = jax.tree.map(
    lambda a: jnp.asarray(rng.standard_normal(a.shape), a.dtype),
    jax.eval_shape(run, *args),
  )
  return both, (cotangent, *args)
