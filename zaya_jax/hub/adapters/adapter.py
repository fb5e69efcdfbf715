# SPDX-License-Identifier: Apache-2.0
"""The adapter of a run with --lora.*, and the model that it belongs to.

A checkpoint of such a run holds the adapter alone. Its meta names the base: by
where it was, and by the values of all of its parameters, whatever type or
format they are stored in. So a base may move, be imported or be exported; one
with other values is refused.
"""

import dataclasses
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from zaya_jax import config as config_lib
from zaya_jax.checkpoint import errors, fingerprint
from zaya_jax.hub import leaves as leaves_lib
from zaya_jax.hub import names as hub_names
from zaya_jax.hub.adapters import kept as kept_lib
from zaya_jax.hub.quantized import choice as choice_lib
from zaya_jax.model import lora, shapes

META = 'base'  # In the meta of a checkpoint that holds an adapter.
# In that of one whose parameters are compared with those of a model.
REFERENCE = 'reference'
_SHOWN = 16  # Digits of a fingerprint.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Base:
  """A model that a run keeps as it is: of its adapter, or its reference.

  Attributes:
    source: its absolute path.
    fingerprint: of the values of its parameters, before they are rounded.
    quant: of --quant; the adapter is one of the model that was rounded so.
    targets: of --quant.targets, if it is.
    role: `META` or `REFERENCE`.
  """

  source: str
  fingerprint: str
  quant: str = 'none'
  targets: tuple[str, ...] = ()
  role: str = META

  @property
  def choice(self) -> choice_lib.Choice:
    """How the base is rounded."""
    return choice_lib.Choice(self.quant, self.targets)

  def as_json(self) -> dict[str, Any]:
    """For the meta of a checkpoint."""
    return dataclasses.asdict(self)

  def __str__(self) -> str:
    """For the user."""
    of = 'adapter' if self.role == META else 'run with --dpo.beta'
    return f'The {self.role} of the {of}'


def of(about: Mapping[str, Any], role: str = META) -> Base | None:
  """The base that the meta of a checkpoint names; None: it is a model.

  Args:
    about: the meta.
    role: `REFERENCE`: the model that it is compared with, if there is one.
  """
  if not about.get(role):
    return None
  given = dict(about[role])
  return Base(**given | {'targets': tuple(given.get('targets', ()))})


def lora_config(about: Mapping[str, Any]) -> config_lib.LoraConfig:
  """Rank, scale and targets of an adapter, from the meta of its checkpoint."""
  given = dict(about['config']['lora'])
  return config_lib.LoraConfig(**given | {'targets': tuple(given['targets'])})


def read(
  found: leaves_lib.Source,
  keep: Callable[[str, leaves_lib.Leaf], kept_lib.Kept],
) -> tuple[dict[str, Any], str]:
  """Reads a base, one layer of an array at a time, each once.

  Args:
    found: the model.
    keep: 'params/PATH' and array -> how it is kept.

  Returns:
    {'params': tree, 'buffers': tree} of what is kept, NumPy arrays, and the
    fingerprint of what was read.
  """
  trees, prints = {'params': {}, 'buffers': {}}, {}
  for name, leaf in _of_model(found):
    whole = keep(name, leaf)
    prints[name] = _print(name, leaf, whole.put)
    part, _, path = name.partition('/')
    trees[part][path] = whole.done()
  nested = {part: hub_names.nest(tree) for part, tree in trees.items()}
  return nested, _digest(prints)


def identity(found: leaves_lib.Source) -> str:
  """The fingerprint of the values of a model."""
  return _digest({n: _print(n, leaf) for n, leaf in _of_model(found)})


def open_model(path: str, base: str = '') -> leaves_lib.Source:
  """A model by its parts; that of an adapter is the base with it merged in.

  A base that was rounded to train the adapter is rounded here as well.

  Args:
    path: a run, a checkpoint or a Hugging Face folder.
    base: where the base of an adapter is now; empty: where it was.

  Raises:
    CheckpointError: if the base is not there, or is another one.
  """
  found = leaves_lib.find(path)
  wanted = of(found.about)
  if wanted is None:
    return found
  source = open_base(wanted, base)
  check(wanted, source.path, identity(source))
  scale = lora_config(found.about).scale
  merged = {n: _seen(wanted, n, leaf) for n, leaf in _of_model(source)}
  for name, leaf in merged.items():
    factors = [found.leaves.get(f'{name}/{key}') for key in shapes.FACTORS]
    a, b = factors
    if a is not None and b is not None:
      merged[name] = _Merged(leaf, a, b, scale)
  return dataclasses.replace(found, leaves=merged)


def open_base(base: Base, path: str = '') -> leaves_lib.Source:
  """The base of an adapter, or a reference; its values are not compared yet.

  Args:
    base: as a checkpoint names it.
    path: where it is now, or a run with an adapter of it; empty: where it was.

  Raises:
    CheckpointError: if it is not there.
  """
  path = path or base.source
  if not os.path.isdir(path):
    raise errors.CheckpointError(
      f'{base} was {base.source} (fingerprint {base.fingerprint}), and there '
      f'is no folder {path}; name where it is with --restore.',
      errors.USAGE,
    )
  found = leaves_lib.find(path)
  its_own = of(found.about)
  return open_base(its_own) if its_own else found


def check(base: Base, path: str, fingerprint: str) -> None:
  """Refuses a base with other values than those that were trained on.

  Raises:
    CheckpointError: which names both.
  """
  if fingerprint != base.fingerprint:
    raise errors.CheckpointError(
      f'{base} is {base.source} (fingerprint {base.fingerprint}), and {path} '
      f'holds other parameters (fingerprint {fingerprint}); name the one of '
      'before with --restore.',
      errors.USAGE,
    )


def _seen(base, name, leaf) -> leaves_lib.Leaf:
  """An array of the base as the adapter was trained on it."""
  part, _, path = name.partition('/')
  kind = base.choice.of(path) if part == 'params' else None
  if kind is None:
    return leaf
  return kept_lib.RoundedLeaf(leaf, kind, path.startswith('layers/'))


class _Merged:
  """A matrix of the base and its factors, summed as it is read."""

  def __init__(self, leaf, a, b, scale):
    self.shape, self.dtype = leaf.shape, leaf.dtype
    self._leaf, self._a, self._b, self._scale = leaf, a, b, scale

  def __getitem__(self, index: tuple[int, ...]) -> np.ndarray:
    b = self._scale * self._b[index]
    return lora.add(self._leaf[index], self._a[index], b)


def _of_model(found) -> Iterator[tuple[str, leaves_lib.Leaf]]:
  """The parameters and buffers, in one order; what else a run has is left."""
  for name in sorted(found.leaves):
    if name.partition('/')[0] in ('params', 'buffers'):
      yield name, found.leaves[name]


def _print(name, leaf, put=None) -> str:
  """The fingerprint of one array as float32, whose parts are also `put`.

  The first layer's EDA vector, which Hugging Face folders do not have and no
  model uses, counts as zeros.
  """

  def read():
    for index, values in leaves_lib.parts(leaf, name):
      values = np.asarray(values)
      if put:
        put(index, values)
      wide = values.astype(np.float32)
      if name == f'params/{hub_names.EDA}' and index == (0,):
        wide = np.zeros_like(wide)
      start = (*index, *(0,) * wide.ndim)
      yield start, wide.reshape((1,) * len(index) + wide.shape)

  return fingerprint.of_host(read(), leaf.shape)


def _digest(prints) -> str:
  text = json.dumps(prints, sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()[:_SHOWN]
