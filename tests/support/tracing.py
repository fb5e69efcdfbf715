# SPDX-License-Identifier: Apache-2.0
"""What a traced function consists of."""

from collections.abc import Iterator
from typing import Any

from jax.extend import core


def equations(jaxpr: Any) -> Iterator[Any]:
  """Yields the equations of a jaxpr, those of its inner ones too."""
  for equation in getattr(jaxpr, 'jaxpr', jaxpr).eqns:
    yield equation
    for inner in core.jaxprs_in_params(equation.params):
      yield from equations(inner)


def dots(jaxpr: Any) -> list[Any]:
  """The matrix products of a jaxpr."""
  return [e for e in equations(jaxpr) if e.primitive.name == 'dot_general']
