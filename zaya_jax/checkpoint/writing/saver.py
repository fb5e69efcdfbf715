# SPDX-License-Identifier: Apache-2.0
"""Writes states to disk, in the background, and seals them.

Each process writes and hashes its part. When all parts are on disk, process 0
seals them and gives the checkpoint its name: until then it does not count.
"""

import concurrent.futures
import logging
import os
import shutil
from collections.abc import Callable
from typing import Any

import orbax.checkpoint as ocp

from zaya_jax import config as config_lib
from zaya_jax.checkpoint import (
  agreement,
  arrays,
  errors,
  fingerprint,
  folders,
  quiet,
  seal,
)
from zaya_jax.checkpoint.reading import high_water, ownership
from zaya_jax.checkpoint.writing import handlers, retention
from zaya_jax.runtime import durable, processes, run_files


class Saver:
  """The thread that writes the checkpoints of a run, one after another.

  Args:
    root: the folder of the checkpoints.
    config: how long a save may take, and which checkpoints stay.
  """

  def __init__(self, root: str, config: config_lib.CheckpointConfig):
    quiet.silence()
    self._root, self._config = root, config
    self._run_dir = os.path.dirname(root)
    self._lineage: dict[str, str] = {}
    self._saves = 0  # Begun, the same in all processes.
    self._told: set[str] = set()  # Why old ones stay.
    self._thread = concurrent.futures.ThreadPoolExecutor(1, 'seal')
    self._parts = handlers.Parts()
    self._orbax = handlers.checkpointer(config, self._parts)

  def begin(
    self, step: int, state: Any, meta: dict[str, Any]
  ) -> concurrent.futures.Future[str]:
    """Copies the arrays to the host, and leaves the rest to the thread.

    Args:
      step: done.
      state: may be donated when this returns; with
        `--checkpoint.host_memory_gb` when the save is done.
      meta: of the checkpoint, with 'data_index'.

    Returns:
      A future: why the save failed, or ''.

    Raises:
      errors.FAILURES: if it fails already.
    """
    self._saves += 1
    self._parts.reset()
    prints = fingerprint.of_tree(state)
    args = ocp.args.Composite(
      state=handlers.save_args(state),
      meta=ocp.args.JsonSave({**meta, 'arrays': arrays.describe(state)}),
    )
    aside = self._directory(step) + folders.ASIDE
    self._orbax.save(aside, args=args)
    name = f'save/{self._saves}'
    return self._thread.submit(self._seal, step, aside, meta, prints, name)

  def afterwards(self, run: Callable, *args: Any) -> None:
    """Calls something when the saves that were begun are done."""
    self._thread.submit(run, *args)

  def close(self) -> None:
    """Waits for the thread and ends it."""
    self._orbax.close()
    self._thread.shutdown()

  def _seal(self, step, aside, meta, prints, name) -> str:
    """Waits for all parts, seals and names them; what failed, or ''."""
    self._orbax.wait_until_finished()
    # Once: who deletes run_id does not make another run of this one.
    self._lineage = self._lineage or run_files.lineage(self._run_dir)
    origin = folders.origin_of(self._lineage)
    facts = folders.facts(step, meta, fingerprint.to_json(prints), origin)

    def finish(parts):
      failed = [
        f'process {i}: {p}' for i, p in enumerate(parts) if type(p) is str
      ]
      why = '; '.join(failed)  # The first may only have noticed another's.
      known = {} if why else {k: v for part in parts for k, v in part.items()}
      return why or self._name(step, aside, facts, known)

    parts, wait = self._parts.finish(aside), self._config.timeout_s
    why = agreement.reach(name, parts, finish, wait)
    if processes.process() == 0:
      if why:
        shutil.rmtree(aside, ignore_errors=True)
      else:
        self._thread.submit(self._prune)  # Nobody waits for it.
    return why

  def _name(self, step, aside, facts, known) -> str:
    """Seals what all have written and gives it its name; what failed, or ''."""
    try:
      ownership.check_fence()
      body = seal.write(aside, facts, known=known)
      ownership.check_fence()  # To hash and to sync has taken its time.
      os.rename(aside, self._directory(step))
      durable.sync(self._root)
      high_water.set_to(self._run_dir, body)
    except ownership.UnconfirmedError as error:
      return str(error)
    except (OSError, errors.CheckpointError) as error:
      return errors.cause(error)
    return ''

  def _prune(self) -> None:
    """Removes old ones; no save fails by it, and the next one tries again."""
    try:
      found = retention.prune(self._root, self._config).values()
    except errors.FAILURES as error:
      found = [errors.cause(error)]
    reasons = set(filter(None, found))
    for why in sorted(reasons - self._told):
      logging.warning('Old checkpoints stay in %s: %s.', self._root, why)
    self._told |= reasons

  def _directory(self, step):
    return os.path.join(self._root, str(step))
