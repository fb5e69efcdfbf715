# SPDX-License-Identifier: Apache-2.0
"""The arrays of one checkpoint, or of two beside each other, part by part."""

import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from zaya_jax import config as config_lib
from zaya_jax.checkpoint import errors, fingerprint, kinds, meta
from zaya_jax.checkpoint.reading import finder, lazy


def fingerprints(directory: str) -> dict[str, str]:
  """The fingerprints of a checkpoint's arrays, computed on the host."""
  return {
    path: fingerprint.of_host(leaf.blocks(), leaf.shape)
    for path, leaf in lazy.leaves(directory).items()
  }


def main(config: config_lib.Config, source: str) -> Iterator[dict[str, Any]]:
  """Yields what differs between --source and --checkpoint.other.

  First each array that differs: in kind (type, shape or presence), or in how
  many elements, by how much at most, and by what part of its norm; then each
  setting that differs; then one line that counts.

  Raises:
    CheckpointError: with exit code 2 without a second checkpoint.
  """
  if not config.checkpoint.other:
    raise errors.CheckpointError(
      '--checkpoint.action=diff needs --checkpoint.other=CHECKPOINT.',
      errors.USAGE,
    )
  pair = finder.resolve(source), finder.resolve(config.checkpoint.other)
  first, second = map(lazy.leaves, pair)
  equal = 0
  for path in sorted({**first, **second}):
    found = _array(first.get(path), second.get(path))
    equal += found is None
    if found:
      yield {'array': path, **found}
  settings = list(_settings(*(meta.read(x) for x in pair)))
  yield from settings
  yield {
    'first': pair[0],
    'second': pair[1],
    'equal_arrays': equal,
    'different_arrays': len({**first, **second}) - equal,
    'different_settings': len(settings),
  }


def _array(a: lazy.Leaf | None, b: lazy.Leaf | None) -> dict[str, Any] | None:
  """What differs between two arrays; None: nothing, to the last bit."""
  first, second = (x and kinds.of(x) for x in (a, b))
  if first != second:
    return {'first': first, 'second': second}
  differ, largest, squares, norm = 0, 0.0, 0.0, 0.0
  rows = max(a.rows, b.rows)
  for (_, x), (_, y) in zip(a.blocks(rows), b.blocks(rows), strict=True):
    bits = [v.reshape(-1).view(f'u{v.dtype.itemsize}') for v in (x, y)]
    differ += int(np.sum(bits[0] != bits[1]))
    drift = x.astype(np.float64) - y.astype(np.float64)
    with np.errstate(invalid='ignore'):
      largest = max(largest, float(np.max(np.abs(drift), initial=0.0)))
      squares += float(np.sum(drift * drift))
      norm += float(np.sum(np.square(x.astype(np.float64))))
  if not differ:
    return None
  return {
    'elements': int(np.prod(a.shape)),
    'different': differ,
    'largest_drift': largest,
    'relative_drift': float(np.sqrt(squares / norm)) if norm else None,
  }


def _settings(first: Any, second: Any) -> Iterator[dict[str, Any]]:
  """The leaves of two metas' settings that differ."""
  pair = [dict(_flat(x.get('config', {}), '')) for x in (first, second)]
  for name in ('tokenizer_sha256', 'dataset_sha256', 'data_index', 'tokens'):
    for flat, about in zip(pair, (first, second), strict=True):
      flat[name] = about.get(name)
  for name in sorted({**pair[0], **pair[1]}):
    a, b = pair[0].get(name), pair[1].get(name)
    if a != b:
      yield {'setting': name, 'first': a, 'second': b}


def _flat(tree: Any, prefix: str) -> Iterator[tuple[str, Any]]:
  if not isinstance(tree, dict):
    yield prefix, tree
    return
  for name, value in tree.items():
    yield from _flat(value, os.path.join(prefix, name).replace('/', '.'))
