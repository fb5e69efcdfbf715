# SPDX-License-Identifier: Apache-2.0
"""How an array of a base is kept on the host while its layers are read."""

from typing import Any, Protocol

import numpy as np

from ops.experts import packed
from zaya_jax.checkpoint import errors
from zaya_jax.hub import leaves as leaves_lib
from zaya_jax.hub import packing
from zaya_jax.hub.quantized import rounding


class Kept(Protocol):
  """An array that comes in parts."""

  def put(self, index: tuple[int, ...], values: np.ndarray) -> None:
    """Takes a part: a layer, or with the index () all there is."""

  def done(self) -> Any:
    """The whole."""


class Wide:
  """Kept as it comes, in a type."""

  def __init__(self, shape: tuple[int, ...], dtype: Any):
    self._whole = np.empty(shape, dtype)

  def put(self, index: tuple[int, ...], values: np.ndarray) -> None:
    """As of `Kept`."""
    self._whole[index] = values

  def done(self) -> np.ndarray:
    """As of `Kept`."""
    return self._whole


class Rounded:
  """Matrices that are rounded as they come.

  Args:
    source: of the base, for errors.
    name: of the array.
    lead: its first dimension.
    kind: 'int8' or 'int4'.
  """

  def __init__(self, source: str, name: str, lead: int, kind: str):
    self._source, self._name, self._kind = source, name, kind
    self._stack = packing.Stack(lead)

  def put(self, index: tuple[int, ...], values: np.ndarray) -> None:
    """As of `Kept`."""
    if not np.isfinite(values).all():
      raise errors.not_finite(self._source, [self._name])
    self._stack.put(index, packing.rounded(index, values, self._kind))

  def done(self) -> packed.Packed:
    """As of `Kept`."""
    return self._stack.done()


class Stored:
  """Matrices of few bits as they are in their folder: these are read again."""

  def __init__(self, leaf: leaves_lib.FolderLeaf, name: str):
    self._leaf, self._name = leaf, name

  def put(self, index: tuple[int, ...], values: np.ndarray) -> None:
    """As of `Kept`."""
    del index, values  # Of them there is the fingerprint alone.

  def done(self) -> packed.Packed:
    """As of `Kept`."""
    stack = packing.Stack(self._leaf.shape[0])
    for index, pair in packing.numbers(self._leaf, self._name):
      stack.put(index, pair)
    return stack.done()


class RoundedLeaf:
  """A matrix of a base as layers see it: rounded, and wide again.

  Args:
    leaf: of the base.
    kind: 'int8' or 'int4'.
    of_layer: whether its first dimension counts layers.
  """

  def __init__(self, leaf: leaves_lib.Leaf, kind: str, of_layer: bool):
    self.shape, self.dtype = leaf.shape, np.dtype(np.float32)
    self._leaf, self._kind, self._of_layer = leaf, kind, of_layer

  def __getitem__(self, index: tuple[int, ...]) -> np.ndarray:
    values = np.asarray(self._leaf[index])
    if not self._of_layer:
      return rounding.unpack(*rounding.pack(values, self._kind))
    pair = rounding.pack(values.swapaxes(-1, -2), self._kind)
    return rounding.unpack(*pair).swapaxes(-1, -2)
