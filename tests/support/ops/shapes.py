# SPDX-License-Identifier: Apache-2.0
"""The arguments of a case as shapes: ZAYA1-8B's would fill gigabytes."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ops import case as case_lib


def of(case: case_lib.Case) -> tuple[tuple[Any, ...], dict[str, Any]]:
  """What `case.arguments` gives in bfloat16, arrays as shapes and dtypes."""
  args, kwargs = case.arguments(_Ones(), jnp.dtype('bfloat16'))
  shape = lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype)
  return jax.tree.map(shape, args), kwargs


class _Ones(np.random.Generator):
  """Draws at no cost."""

  def __init__(self):
    super().__init__(np.random.PCG64(0))

  def standard_normal(self, size=None, dtype=np.float64, out=None):
    del out
    return _ones(dtype, size or ())


class _Same(np.ndarray):
  """A view of one number; the results of arithmetic are such views, too."""

  def astype(self, dtype, **how):
    del how  # There is nothing to copy.
    return _ones(dtype, self.shape)

  def __array_ufunc__(self, ufunc, method, *inputs, **how):
    if method != '__call__' or how:
      return NotImplemented
    shape = np.broadcast_shapes(*map(np.shape, inputs))
    small = lambda a: np.ones((), a.dtype) if isinstance(a, np.ndarray) else a
    return _ones(ufunc(*map(small, inputs)).dtype, shape)


def _ones(dtype: np.typing.DTypeLike, shape: tuple[int, ...]) -> np.ndarray:
  return np.broadcast_to(np.ones((), dtype), shape).view(_Same)
