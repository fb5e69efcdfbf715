# SPDX-License-Identifier: Apache-2.0
"""A tensor of which a folder stores numbers of few bits, and scales."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from zaya_jax.hub.tensors import errors, weights

Pair = tuple[np.ndarray, np.ndarray]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tensor:
  """A tensor that is stored as several; reads like `weights.Tensor`.

  Attributes:
    name: of the tensor that is meant.
    shape: of it.
    values: what is stored of its elements.
    scale: what is stored of its scales.
    widen: (values, scales) -> float32.
    pack: (values, scales) -> as `rounding.pack` gives them; None: they are of
      another kind.
  """

  name: str
  shape: tuple[int, ...]
  values: weights.Tensor
  scale: weights.Tensor
  widen: Callable[[np.ndarray, np.ndarray], np.ndarray]
  pack: Callable[[np.ndarray, np.ndarray], Pair] | None = None
  dtype: np.dtype = np.dtype(np.float32)

  @property
  def file(self) -> str:
    """Where the elements are."""
    return self.values.file

  def read(self, rows: slice = slice(None)) -> np.ndarray:
    """The tensor, or some rows of it, float32.

    Raises:
      FolderError: if a file cannot be read to its end.
    """
    return self._apply(self.widen, rows)

  def read_packed(self) -> Pair:
    """Numbers and scales, where `pack` is there."""
    assert self.pack
    return self.pack(self.values.read(), self.scale.read())

  def _apply(self, make, rows):
    if self.values.shape[:1] == self.scale.shape[:1]:
      return make(self.values.read(rows), self.scale.read(rows))
    return make(self.values.read(), self.scale.read())[rows]


class Parts:
  """The tensors of a folder while those of few bits are put together.

  Args:
    file: the path of config.json.
    settings: how it says that tensors are quantized.
    tensors: all, by name.
  """

  def __init__(
    self, file: str, settings: dict[str, Any], tensors: dict[str, Any]
  ):
    self.file, self.settings, self._left = file, settings, tensors
    self._found: dict[str, Tensor] = {}

  def resolved(self, kinds: Sequence[Any]) -> dict[str, Any]:
    """All tensors, by the suffixes that a method has."""
    for name in list(self._left):
      for kind in kinds:
        if name in self._left and kind.fits(name, self._left):
          kind.take(self, name)
    for name, tensor in self._left.items():
      if tensor.dtype not in weights.WIDE:
        raise self.error(name, f'is of type {tensor.dtype} and not explained')
    return {**self._left, **self._found}

  def pop(self, name: str, of: str) -> weights.Tensor:
    """A tensor that belongs to another one."""
    if name not in self._left:
      raise errors.FolderError(
        f'{self.file}: tensor {of} has no {name}, without which its numbers '
        'mean nothing; the folder is incomplete, copy or download it again.'
      )
    return self._left.pop(name)

  def put(self, tensor: Tensor, scale_shape: tuple[int, ...]) -> None:
    """Takes a tensor whose scales have the right shape."""
    if tensor.scale.shape != scale_shape:
      raise self.error(
        tensor.scale.name,
        f'has shape {tensor.scale.shape}, and {tensor.name} of shape '
        f'{tensor.shape} needs {scale_shape}',
      )
    if tensor.name in self._left or tensor.name in self._found:
      raise self.error(tensor.name, 'is there twice, packed and not')
    self._found[tensor.name] = tensor

  def error(self, name: str, what: str) -> errors.FolderError:
    """That something is wrong with a tensor."""
    method = self.settings['quant_method']
    return errors.FolderError(f'{self.file} ({method}): tensor {name} {what}.')
