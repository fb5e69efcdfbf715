# SPDX-License-Identifier: Apache-2.0
"""Reads checkpoints: whole, parameters alone, or one array at a time.

Orbax casts to the type that is asked for and says nothing, so names, shapes and
types are compared before an array is read.
"""

import functools
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from zaya_jax.checkpoint import arrays, errors, fingerprint, folders, seal
from zaya_jax.checkpoint.reading import finder

# What Orbax and TensorStore raise for a missing, cut or garbled file.
FAILURES = (OSError, ValueError, KeyError, TypeError, RuntimeError)

_REQUIRED = ('arrays', 'data_index')  # In every meta.


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
  meta = read_meta(directory)
  state = _read(directory, abstract)
  _compare(directory, state, abstract)
  return state, meta['data_index'], meta


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


def read_meta(directory: str) -> dict[str, Any]:
  """What a checkpoint says about itself."""
  meta = seal.load_json(directory, f'{folders.META}/metadata')
  if not isinstance(meta, dict):
    raise _damaged(directory, TypeError('the meta is no object'))
  if missing := [key for key in _REQUIRED if key not in meta]:
    raise _damaged(directory, KeyError(*missing))
  return meta


def stored(directory: str) -> Any:
  """The tree of a checkpoint with the shape and dtype of each array."""
  _check_json(directory)
  try:
    state = _checkpointer().metadata(directory).item_metadata.state
  except FAILURES as error:
    raise _damaged(directory, error) from error
  if state is None:
    raise _damaged(directory, FileNotFoundError('there are no arrays'))
  return state.tree


def leaves(directory: str) -> Iterator[tuple[str, np.ndarray]]:
  """Yields (path, whole array) one after another, in host memory."""
  tree = stored(directory)
  structure = jax.tree.structure(tree)
  as_numpy = ocp.RestoreArgs(restore_type=np.ndarray)
  for i, (path, leaf) in enumerate(arrays.named(tree).items()):
    wanted = [ocp.PLACEHOLDER] * structure.num_leaves
    wanted[i] = leaf
    restored = _read(
      directory,
      jax.tree.unflatten(structure, wanted),
      jax.tree.unflatten(structure, [as_numpy] * structure.num_leaves),
    )
    yield path, jax.tree.leaves(restored)[i]


def silence() -> None:
  """Drops what Orbax logs about its progress.

  Also its tracebacks: the errors behind them are raised to us as well.
  """
  logging.getLogger('absl').addFilter(_worth_showing)


def _read(
  directory: str, tree: Any, restore_args: Any = None, **options
) -> Any:
  if restore_args is None:
    restore_args = ocp.checkpoint_utils.construct_restore_args(tree)
  args = ocp.args.PyTreeRestore(tree, restore_args=restore_args, **options)
  try:
    composite = ocp.args.Composite(state=args)
    return _checkpointer().restore(directory, args=composite).state
  except jax.errors.JaxRuntimeError:
    raise  # The device is out of memory, for example; the files are innocent.
  except FAILURES as error:
    raise _damaged(directory, error) from error


def _checkpointer() -> ocp.Checkpointer:
  silence()
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
  if not os.path.exists(os.path.join(directory, seal.NAME)):
    return  # Of a checkpoint that is being made, or sealed now.
  saved = seal.read(directory).get('fingerprint', {})
  wanted = arrays.describe(abstract)
  stored_as = arrays.describe(stored(directory))
  # A widened array has other bits.
  same = {k: v for k, v in saved.items() if wanted.get(k) == stored_as.get(k)}
  prints = fingerprint.to_json(fingerprint.of_tree(found))
  prints = {k: v for k, v in prints.items() if k in same}
  if bad := fingerprint.differences(same, prints):
    what = f'the values of {bad[0]} are not those that were saved'
    raise seal.BrokenError(directory, 'fingerprint', what)


def _check(directory: str, saved: dict[str, str], abstract: Any) -> None:
  if found := arrays.differences(saved, arrays.describe(abstract)):
    raise errors.CheckpointError(
      f'Checkpoint {directory} does not fit this model and optimizer: '
      f'{found}; use the flags that it was made with (config.flags of its '
      'run).',
      errors.USAGE,
    )


def _widened(kind: str) -> str:
  """'float32[4,256]' of the half precision that fits into it."""
  return re.sub(r'^(bfloat16|float16)\b', 'float32', kind)


def _damaged(directory: str, error: BaseException) -> errors.CheckpointError:
  # Reads that were under way end after the event loop of Orbax, and each would
  # print a traceback of its own about that.
  if getattr(sys.unraisablehook, 'func', None) is not _late:
    sys.unraisablehook = functools.partial(_late, sys.unraisablehook)
  name = os.path.basename(directory)
  return errors.CheckpointError(
    f'Checkpoint {directory} is damaged ({errors.cause(error)}); move '
    f'{name} away to go on from the one before it.'
  )


def _late(show: Callable[[Any], None], unraisable: Any) -> None:
  if 'Event loop is closed' not in str(unraisable.exc_value):
    show(unraisable)


def _worth_showing(record: logging.LogRecord) -> bool:
  if f'{os.sep}orbax{os.sep}' not in record.pathname:
    return True
  return record.levelno >= logging.WARNING and not record.exc_info
