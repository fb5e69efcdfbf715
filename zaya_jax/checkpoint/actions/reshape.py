# SPDX-License-Identifier: Apache-2.0
"""Writes a checkpoint anew, cut so that each of M ranks reads its own parts.

Any number of ranks restores any checkpoint; but where parts on disk are not
those of a rank, it reads more than it needs.
"""

import math
import os
import shutil
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from zaya_jax import config as config_lib
from zaya_jax.checkpoint import (
  arrays,
  errors,
  fingerprint,
  folders,
  meta,
  seal,
)
from zaya_jax.checkpoint.actions import compare
from zaya_jax.checkpoint.reading import finder, lazy, reader
from zaya_jax.checkpoint.writing import aside, stream
from zaya_jax.runtime import run_files

_LARGE = 2**24  # Bytes of an array whose layers are written one by one.
# What a run tells of its past, which is not that of the new folder.
_PAST = (
  '.lock', 'log.txt', 'metrics.jsonl', 'incidents.jsonl', 'report.html',
  'run_id', 'parent_id',
)  # fmt: skip


def main(config: config_lib.Config, source: str) -> Iterator[dict[str, Any]]:
  """Writes --output/checkpoints/STEP from the newest checkpoint of --source.

  Memory holds one part of one array. The fingerprints are those of the source,
  or nothing is left.

  Raises:
    CheckpointError: if the output exists or is not named (exit code 2), or
      cannot be written (3).
  """
  output = config.output.rstrip(os.sep)
  if not output or os.path.lexists(output):
    raise errors.CheckpointError(
      f'--checkpoint.action=reshape needs --output=RUN_DIR, a new folder, and '
      f'not --output={output}.',
      errors.USAGE,
    )
  directory = finder.resolve(source)
  step, ranks = os.path.basename(directory), config.checkpoint.ranks
  with aside.folder(output) as partial:
    _copy_files(folders.run_of(directory), partial)
    target = os.path.join(folders.root(partial), step)
    if parent := seal.verified(directory).get('run'):
      run_files.set_parent(partial, parent)
    stream.write(target, _tree(directory, ranks), meta.read(directory))
    saved = seal.read(directory).get('fingerprint', {})
    fingerprint.check(target, saved, compare.fingerprints(target))
  yield {
    'checkpoint': os.path.join(folders.root(output), step),
    'ranks': ranks,
    'fingerprints': 'equal',
  }


def _tree(directory: str, ranks: int) -> Any:
  """The tree with arrays that are read when they are written."""

  def array(leaf):
    chunk = _chunk(leaf.shape, leaf.dtype.itemsize, ranks)
    return stream.Array(leaf.shape, leaf.dtype, chunk, _parts(leaf, chunk))

  tree, leaves = reader.stored(directory), lazy.leaves(directory)
  found = [array(leaves[path]) for path in arrays.named(tree)]
  return jax.tree.unflatten(jax.tree.structure(tree), found)


def _chunk(
  shape: tuple[int, ...], itemsize: int, ranks: int
) -> tuple[int, ...]:
  """The shape of a part: one of `ranks` along the first axis that allows it."""
  chunk = list(shape)
  for axis, size in enumerate(shape):
    if size % ranks == 0:
      chunk[axis] = max(1, size // ranks)
      break
  if len(shape) > 1 and math.prod(chunk) * itemsize > _LARGE:
    chunk[0] = 1 if len(shape) > 2 else math.gcd(chunk[0], 1024)
  return tuple(chunk)


def _parts(leaf: lazy.Leaf, chunk: tuple[int, ...]) -> Any:
  def parts() -> Iterator[tuple[Any, np.ndarray]]:
    if not leaf.shape:
      yield (), leaf[()]
      return
    for start, block in leaf.blocks(chunk[0]):
      yield (slice(start[0], start[0] + len(block)),), block

  return parts


def _copy_files(run_dir: str, target: str) -> None:
  """What makes a run of a folder: its settings and tokenizer."""
  for item in os.scandir(run_dir):
    if item.is_file(follow_symlinks=False) and item.name not in _PAST:
      shutil.copy2(item.path, target)
