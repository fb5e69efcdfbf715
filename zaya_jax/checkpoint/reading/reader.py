# SPDX-License-Identifier: Apache-2.0
"""Reads checkpoints: whole, parameters alone, or one array at a time.

Orbax casts to the type that is asked for and says nothing, so names, shapes and
types are compared before an array is read.
"""

import os
import re
from typing import Any

import jax
import orbax.checkpoint as ocp

from zaya_jax.checkpoint import (
  arrays,
  errors,
  fingerprint,
  folders,
  kinds,
  meta,
  quiet,
  seal,
)
from zaya_jax.checkpoint.reading import finder


def restore(directory: str, abstract: Any) -> tuple[Any, int, dict[str, Any]]:
  """Reads a whole training state.

  Args:
    directory: a complete checkpoint.
    abstract: the state as ShapeDtypeStructs with the shardings to restore to,
      which need not be those it was saved with (`arrays.on_mesh`).

  Returns:
    (the state, the position in the data, the meta).

  Raises:
    CheckpointError: if the arrays are others than those asked for (exit code
      2), or if a file is damaged (3).
    BrokenError: if the values are not those that were saved, although the files
      are.
  """
  _check(directory, arrays.describe(stored(directory)), abstract)
  about = meta.read(directory)
  state = _read(directory, abstract)
  _compare(directory, state, abstract)
  return state, about['data_index'], about


def restore_params(source: str, abstract: Any) -> Any:
  """Reads some fields of a training state; the optimizer's are not touched.

  Args:
    source: a run directory, of which the newest checkpoint is taken, or one
      checkpoint.
    abstract: the wanted fields as a dict, for example params and buffers, of
      ShapeDtypeStructs with shardings.

  Returns:
    The same dict of arrays. Where float32 is asked for, half precision (of an
    import) is widened, which loses nothing; nothing is ever narrowed.

  Raises:
    CheckpointError: as `restore`.
  """
  directory = finder.resolve(source)
  wanted = arrays.describe(abstract)
  saved = {
    name: _widened(kind) if wanted.get(name) == _widened(kind) else kind
    for name, kind in arrays.describe(stored(directory)).items()
    if name.partition('/')[0] in abstract
  }
  _check(directory, saved, abstract)
  found = _read(directory, abstract, partial_restore=True)
  _compare(directory, found, abstract)
  return found


def stored(directory: str) -> Any:
  """The tree of a checkpoint with the shape and dtype of each array."""
  _check_json(directory)
  try:
    state = _checkpointer().metadata(directory).item_metadata.state
  except errors.FAILURES as error:
    raise errors.damaged(directory, error) from error
  if state is None:
    raise errors.damaged(directory, 'there are no arrays')
  return state.tree


def _read(
  directory: str, tree: Any, restore_args: Any = None, **options
) -> Any:
  if restore_args is None:
    restore_args = ocp.checkpoint_utils.construct_restore_args(tree)
  args = ocp.args.PyTreeRestore(tree, restore_args=restore_args, **options)
  try:
    composite = ocp.args.Composite(state=args)
    return _checkpointer().restore(directory, args=composite).state
  except Exception as error:
    # What goes wrong with one array comes from Orbax as an Exception.
    cause = error.__cause__ if type(error) is Exception else error
    if isinstance(cause, jax.errors.JaxRuntimeError):
      raise  # The device is out of memory, for example; the files are innocent.
    if not isinstance(cause, errors.FAILURES):
      raise
    raise errors.damaged(directory, cause) from error


def _checkpointer() -> ocp.Checkpointer:
  quiet.silence()
  handlers = {
    folders.STATE: ocp.PyTreeCheckpointHandler(),
    folders.META: ocp.JsonCheckpointHandler(),
    'metrics': ocp.JsonCheckpointHandler(),  # Of older ones; not read here.
  }
  return ocp.Checkpointer(ocp.CompositeCheckpointHandler(**handlers))


def _check_json(directory: str) -> None:
  """Refuses JSON that Orbax would read, however large or deep it is."""
  own = f'{folders.STATE}/array_metadatas'
  folder = os.path.join(directory, own)
  names = os.listdir(folder) if os.path.isdir(folder) else []
  names = [f'{own}/{name}' for name in names]
  for name in ('_CHECKPOINT_METADATA', f'{folders.STATE}/_METADATA', *names):
    seal.load_json(directory, name)


def _compare(directory: str, found: Any, abstract: Any) -> None:
  """Compares the values on the devices with those that were saved."""
  saved = seal.verified(directory).get('fingerprint', {})
  wanted = arrays.describe(abstract)
  stored_as = arrays.describe(stored(directory))
  # A widened array has other bits.
  same = {k: saved.get(k, '') for k in wanted if wanted[k] == stored_as.get(k)}
  prints = fingerprint.to_json(fingerprint.of_tree(found))
  prints = {k: v for k, v in prints.items() if k in same}
  fingerprint.check(directory, same, prints)


def _check(directory: str, saved: dict[str, str], abstract: Any) -> None:
  if found := kinds.differences(saved, arrays.describe(abstract)):
    raise errors.CheckpointError(
      f'Checkpoint {directory} does not fit this model and optimizer: '
      f'{found}; use the flags that it was made with (config.flags of its '
      'run).',
      errors.USAGE,
    )


def _widened(kind: str) -> str:
  """'float32[4,256]' of the half precision that fits into it."""
  return re.sub(r'^(bfloat16|float16)\b', 'float32', kind)
