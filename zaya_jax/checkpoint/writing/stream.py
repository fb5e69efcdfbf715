# SPDX-License-Identifier: Apache-2.0
"""Writes a checkpoint part by part: its arrays are never whole in memory.

The format is that of `manager.Manager`, so every reader of one reads the other.
"""

import dataclasses
import math
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
import tensorstore

from zaya_jax.checkpoint import (
  arrays,
  errors,
  fingerprint,
  folders,
  quiet,
  seal,
)
from zaya_jax.runtime import run_files


@dataclasses.dataclass(frozen=True)
class Array:
  """An array that comes in parts.

  Attributes:
    shape: of the whole.
    dtype: of the whole and of each part.
    chunk: the shape of what is stored, and later read, at once.
    parts: makes (index, values), each covering whole chunks, together all.
  """

  shape: tuple[int, ...]
  dtype: np.dtype
  chunk: tuple[int, ...]
  parts: Callable[[], Iterable[tuple[Any, np.ndarray]]]

  @property
  def size(self) -> int:
    """How many elements it has."""
    return math.prod(self.shape)

  @property
  def nbytes(self) -> int:
    """Bytes of the whole."""
    return self.size * self.dtype.itemsize


def write(
  directory: str,
  tree: dict[str, Any],
  meta: dict[str, Any],
  progress: Callable[[int], None] = lambda _: None,
) -> None:
  """Writes one checkpoint of parameters.

  Args:
    directory: RUN_DIR/checkpoints/STEP; it must not exist.
    tree: nested dict of `Array`, as params and buffers of a training state.
    meta: of `meta.describe`; 'data_index' in it is 0 if absent.
    progress: is told of each part: how many bytes were written.

  Raises:
    CheckpointError: if it cannot be written, a full disk most likely.
  """
  quiet.silence()
  writer = _Handler(progress)
  handlers = {
    folders.STATE: ocp.PyTreeCheckpointHandler(
      type_handler_registry=ocp.type_handlers.create_type_handler_registry(
        (Array, writer),
        (jax.Array, ocp.type_handlers.ArrayHandler()),  # Orbax warns else.
      )
    ),
    folders.META: ocp.JsonCheckpointHandler(),
  }
  args = ocp.args.Composite(
    state=ocp.args.PyTreeSave(tree),
    meta=ocp.args.JsonSave(
      {'data_index': 0, **meta, 'arrays': arrays.describe(tree)}
    ),
  )
  handler = ocp.CompositeCheckpointHandler(**handlers)
  try:
    with ocp.Checkpointer(handler) as checkpointer:
      checkpointer.save(os.path.abspath(directory), args=args)
    prints = {k: writer.prints[id(x)] for k, x in arrays.named(tree).items()}
    step = int(os.path.basename(directory))
    lineage = run_files.lineage(folders.run_of(directory))
    origin = folders.origin_of(lineage)
    seal.write(directory, folders.facts(step, meta, prints, origin))
  except BaseException as error:
    writer.stop()
    ours = isinstance(error, errors.FAILURES)
    if not ours or getattr(error, 'exit_code', None):  # Of who makes the parts.
      raise
    raise errors.CheckpointError(
      f'{directory} cannot be written ({errors.cause(error)}); make room there '
      'and repeat the command.'
    ) from error


class _Handler(ocp.type_handlers.NumpyHandler):
  """Saves an `Array` as Orbax saves a NumPy array, but part by part."""

  def __init__(self, progress: Callable[[int], None]):
    super().__init__(deepcopy_host_arrays=False)
    self._progress = progress
    self._stopped, self._writing = False, threading.Lock()
    self.prints: dict[int, str] = {}  # By id of the array.

  def stop(self) -> None:
    """Ends the writing: Orbax's thread outlives Ctrl-C and a failed array."""
    self._stopped = True
    with self._writing:
      pass

  async def _open_and_write(
    self, value: Array, tspec: dict[str, Any], ts_context: Any
  ) -> None:
    # Orbax starts all arrays at once. Nothing is awaited here, so that one part
    # of one array is in memory at a time.
    with self._writing:
      try:
        self._write(value, tspec, ts_context)
      except BaseException:
        self._stopped = True  # The other arrays are in vain.
        raise

  def _write(self, value, tspec, ts_context) -> None:
    if self._stopped:
      raise InterruptedError
    tspec['metadata']['chunks'] = list(value.chunk)
    store = tensorstore.open(
      tensorstore.Spec(tspec), create=True, open=True, context=ts_context
    ).result()
    parts = self._write_parts(store, value)
    self.prints[id(value)] = fingerprint.of_host(parts, value.shape)

  def _write_parts(self, store, value) -> Iterator[tuple[Any, np.ndarray]]:
    for index, part in value.parts():
      if self._stopped:
        raise InterruptedError
      store[index].write(part).result()
      self._progress(part.nbytes)
      index = index if isinstance(index, tuple) else (index,)
      start = [x.start or 0 if isinstance(x, slice) else x for x in index]
      whole = sum(not isinstance(x, slice) for x in index)
      start += [0] * (len(value.shape) - len(index))
      yield start, part.reshape((1,) * whole + part.shape)
