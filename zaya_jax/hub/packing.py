# SPDX-License-Identifier: Apache-2.0
"""Reads a model with matrices of few bits: rounded here, or stored so.

One layer of one array at a time is wide: memory is that of the packed model.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np

from ops.experts import packed
from zaya_jax import config as config_lib
from zaya_jax.checkpoint import errors
from zaya_jax.hub import leaves as leaves_lib
from zaya_jax.hub import names as hub_names
from zaya_jax.hub.quantized import choice as choice_lib
from zaya_jax.hub.quantized import rounding
from zaya_jax.model import packed as few_bits


class _Found(Protocol):
  """A model by its parts: `leaves.Source`, or what is exported."""

  @property
  def path(self) -> str: ...
  @property
  def config(self) -> config_lib.ModelConfig: ...
  @property
  def leaves(self) -> Mapping[str, leaves_lib.Leaf]: ...


def wanted(found: _Found, choice: choice_lib.Choice) -> bool:
  """Whether a model is to be read by `read`.

  Raises:
    UsageError: if it cannot be rounded, or was already.
  """
  stored = [n for n, leaf in found.leaves.items() if is_stored(leaf)]
  if choice and stored:
    raise config_lib.UsageError(
      f'--quant={choice.kind}: {found.path} is quantized already, such as '
      f'{stored[0].partition("/")[2]}; leave --quant out.'
    )
  choice.check(found.config)
  return bool(choice or stored)


def read(
  found: leaves_lib.Source, choice: choice_lib.Choice
) -> tuple[dict[str, Any], dict[str, Any]]:
  """Parameters and buffers: arrays, float32 or packed.

  Args:
    found: the model.
    choice: what is rounded; what is stored in few bits stays so.

  Raises:
    CheckpointError: if there is NaN or Inf.
  """
  trees: dict[str, dict[str, Any]] = {'params': {}, 'buffers': {}}
  for name, leaf in found.leaves.items():
    part, _, path = name.partition('/')
    if part not in trees:
      continue
    kind = choice.of(path) if part == 'params' else None
    check = _Check(found.path, name)
    if is_stored(leaf):
      parts = ((n, check(pair)) for n, pair in numbers(leaf, name))
      trees[part][path] = _packed(leaf, parts)
    elif kind:
      parts = _rounded(leaf, name, kind, check)
      trees[part][path] = _packed(leaf, parts)
    else:
      trees[part][path] = _wide(leaf, name, check)
  params, buffers = (hub_names.nest(tree) for tree in trees.values())
  return params, buffers


class Stack:
  """Packed matrices that come layer by layer, on the host.

  Args:
    lead: the first dimension: layers, if it has them.
  """

  def __init__(self, lead: int):
    self._lead = lead
    self._whole: list[np.ndarray] = []

  def put(self, index: tuple[int, ...], pair: tuple[Any, Any]) -> None:
    """Numbers and scales of a layer; the index () is of all there is."""
    if not index:
      self._whole = list(pair)
      return
    if not self._whole:
      self._whole = [np.empty((self._lead, *a.shape), a.dtype) for a in pair]
    for stack, part in zip(self._whole, pair, strict=True):
      stack[index] = part

  def done(self) -> packed.Packed:
    """All of them, NumPy arrays."""
    values, scale = self._whole
    return packed.Packed(values=values, scale=scale)  # type: ignore[arg-type]


def is_stored(leaf: Any) -> TypeGuard[leaves_lib.FolderLeaf]:
  """Whether a leaf has few bits in its folder."""
  return isinstance(leaf, leaves_lib.FolderLeaf) and leaf.is_packed


def numbers(
  leaf: leaves_lib.FolderLeaf, name: str
) -> Iterator[tuple[Any, Any]]:
  """Yields (index, numbers and scales) of a leaf that `is_stored`."""
  stacked = name.partition('/')[2].startswith('layers/')
  for index in [(n,) for n in range(leaf.shape[0])] if stacked else [()]:
    yield index, leaf.read_packed(index)


def rounded(index: tuple[int, ...], values: Any, kind: str) -> tuple[Any, Any]:
  """Numbers and scales of a part of an array; () is the index of no layer."""
  # Of the layers alone matrices are kept as [in, out].
  return rounding.pack(values.swapaxes(-1, -2) if index else values, kind)


def note(weights: Any) -> str:
  """What the weights of a decoder take; empty if none are packed."""
  leaves = jax.tree.leaves(weights, is_leaf=few_bits.is_packed)
  if not any(map(few_bits.is_packed, leaves)):
    return ''
  count = sum(leaf.size for leaf in leaves)
  size, half = few_bits.num_bytes(weights), 2 * count
  return (
    f'note: {count:,} weights take {size / 1e6:,.1f} MB, '
    f'{8 * size / count:.2f} bits each; in bfloat16 they would take '
    f'{half / 1e6:,.1f} MB.'
  )


class _Check:
  """Refuses NaN and Inf in an array."""

  def __init__(self, source: str, name: str):
    self._source, self._name = source, name

  def __call__(self, values: Any) -> Any:
    for part in values if isinstance(values, tuple) else (values,):
      if part.dtype.kind not in 'iu' and not np.isfinite(part).all():
        raise errors.not_finite(self._source, [self._name])
    return values


def _rounded(leaf, name, kind, check) -> Iterator[tuple[Any, Any]]:
  """(index, numbers and scales) of the parts of an array."""
  for index, values in leaves_lib.parts(leaf, name):
    yield index, rounded(index, check(values), kind)


def _packed(leaf, parts) -> packed.Packed:
  """Of an array, from numbers and scales of its parts."""
  stack = Stack(leaf.shape[0])
  for index, pair in parts:
    stack.put(index, pair)
  return jax.tree.map(jnp.asarray, stack.done())


def _wide(leaf, name, check: Callable[[np.ndarray], np.ndarray]):
  found = np.empty(leaf.shape, np.float32)
  for index, values in leaves_lib.parts(leaf, name):
    found[index] = check(values)
  return jnp.asarray(found)
