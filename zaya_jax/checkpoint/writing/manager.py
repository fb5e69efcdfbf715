# SPDX-License-Identifier: Apache-2.0
"""Saves training states in the background and decides which ones stay.

Each process writes and hashes its part. When all parts are on disk, process 0
seals them and gives the checkpoint its name: until then it does not count. A
save that fails (a full disk, most often) is a warning, and an error if it is
the last one or `--checkpoint.max_failed_saves` fail in a row; it never touches
an older checkpoint.
"""

import concurrent.futures
import logging
import os
import shutil
import time
from typing import Any, Self

import jax
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
from zaya_jax.checkpoint.reading import finder, reader
from zaya_jax.checkpoint.writing import handlers, retention
from zaya_jax.config import exit_codes
from zaya_jax.runtime import processes, rank, session

_HEADROOM = 1.2  # Free bytes that a save asks for, per byte of state.
_FIRST_S = 1.0  # For process 0 to say what all know.
_PATIENCE_S = 5.0  # A save that is not urgent waits for the one before it.


class Manager:
  """The checkpoints of one run: the newest, the best and every k-th stay.

  Args:
    run_dir: the run directory; checkpoints/ is made in it.
    config: how many to keep, and how long a save may take.
  """

  def __init__(self, run_dir: str, config: config_lib.CheckpointConfig):
    quiet.silence()
    self._root = folders.root(run_dir)
    self._config = config
    self._failure: str | None = None  # Why the newest save failed.
    self._failures = 0  # In a row.
    self._saves = 0  # Begun, the same in all processes.
    self._newest: int | None = None  # Saved by this manager.
    self._thread = concurrent.futures.ThreadPoolExecutor(1, 'seal')
    self._saving: tuple[int, concurrent.futures.Future] | None = None
    if processes.process() == 0:
      os.makedirs(self._root, exist_ok=True)
      folders.remove_partial(self._root)
    processes.barrier('cleared')
    self._parts = handlers.Parts()
    self._orbax = handlers.checkpointer(config, self._parts)

  def latest_step(self) -> int | None:
    """The step of the newest valid checkpoint; newer ones are set aside.

    Raises:
      CheckpointError: if there are checkpoints and none is valid.
    """
    return finder.newest(self._root, repair=True)

  def newest_saved(self) -> int | None:
    """The step of the newest sealed checkpoint, whose files are not read."""
    return processes.first_says(
      lambda: max(folders.steps(self._root), default=None)
    )

  def directory(self, step: int) -> str:
    """The path of the checkpoint of `step`."""
    return os.path.join(self._root, str(step))

  def save(
    self,
    step: int,
    state: Any,
    *,
    data_index: int,
    meta: dict[str, Any],
    urgent: bool = True,
  ) -> bool:
    """Starts to save; the arrays may be donated as soon as this returns.

    A failure of the save before, or of this one, is logged and training may go
    on. A step that is on disk already is not saved again.

    Args:
      step: optimizer steps done.
      state: a tree of jax arrays.
      data_index: the position in the data.
      meta: of `meta.describe`; 'metrics' in it decides about the best.
      urgent: waits for the save before as long as it takes; else for seconds,
        and then this step is not saved.

    Returns:
      Whether the step is on disk or on its way there.

    Raises:
      CheckpointError: if as many saves in a row have failed as may.
    """
    rank.check_fence()
    if not urgent and processes.first_says(self._is_busy):
      logging.warning(
        'Step %d is not saved: the save of step %d is still under way; raise '
        '--checkpoint.every, or find out why %s is slow.',
        step,
        self._saving[0],
        self._root,
      )
      return False
    self._finish()
    self._failure = None
    found = processes.first_says(lambda: self._on_disk(step, state))
    if found is not None:
      if found:
        self._fail(step, found)
      return not found
    self._begin(step, state, data_index, meta)
    return self._failure is None

  def wait(self) -> None:
    """Waits until the newest save is on disk.

    Raises:
      CheckpointError: if it failed.
    """
    self._finish()
    if self._failure:
      raise errors.CheckpointError(self._failure)

  def amend(self, step: int, metrics: dict[str, float]) -> None:
    """Adds what was measured of a saved step to its seal, in the background."""
    if processes.process() == 0:
      self._thread.submit(folders.amend, self.directory(step), metrics)

  def restore(self, step: int, abstract: Any) -> tuple[Any, int, dict]:
    """Reads a checkpoint of this run, as `reader.restore`.

    Raises:
      BrokenError: resumable, if its values are not those that were saved. It
        has been set aside: the same command goes on from the one before.
    """
    try:
      return reader.restore(self.directory(step), abstract)
    except seal.BrokenError as error:
      processes.barrier('bad')  # Nobody reads it any more.
      if processes.process() == 0:
        folders.set_aside(self.directory(step), error.reason)
      error.exit_code = exit_codes.STOPPED
      raise

  def close(self) -> None:
    """Waits for the newest save and lets go. Raises as `wait`."""
    try:
      self.wait()
    finally:
      self._release()

  def __enter__(self) -> Self:
    return self

  def __exit__(self, kind, *unused) -> None:
    if kind is None:
      self.close()
    elif processes.processes() == 1:  # Else all end now; nobody may wait.
      try:
        self._finish()
      except errors.CheckpointError:
        pass  # An error is on its way already: do not hide it.
      self._release()

  def _release(self) -> None:
    self._orbax.close()
    self._thread.shutdown()

  def _begin(self, step, state, data_index, meta) -> None:
    """Copies the arrays to the host, and leaves the rest to a thread."""
    self._saves += 1
    self._parts.reset()
    prints = fingerprint.of_tree(state)
    args = ocp.args.Composite(
      state=handlers.save_args(state),
      meta=ocp.args.JsonSave(
        {**meta, 'arrays': arrays.describe(state), 'data_index': data_index}
      ),
    )
    aside = self.directory(step) + folders.ASIDE
    try:
      self._orbax.save(aside, args=args, force=True)
    except errors.FAILURES as error:
      self._give_up(step, error)
      return
    future = self._thread.submit(
      self._seal, step, aside, meta, prints, f'save/{self._saves}'
    )
    self._saving = step, future
    if self._config.host_memory_gb:
      self._finish()  # What is not copied yet must not be donated.

  def _seal(self, step, aside, meta, prints, name) -> str:
    """Waits for all parts, seals and names them; what failed, or ''."""
    self._orbax.wait_until_finished()
    facts = folders.facts(step, meta, fingerprint.to_json(prints))

    def name_it(parts):
      failed = [
        f'process {i}: {p}' for i, p in enumerate(parts) if type(p) is str
      ]
      why = '; '.join(failed)  # The first may only have noticed another's.
      if not why:
        known = {name: entry for part in parts for name, entry in part.items()}
        try:
          rank.check_fence()
          seal.write(aside, facts, known=known)
          os.rename(aside, self.directory(step))
          seal.sync(self._root)
          retention.prune(self._root, self._config)
        except (OSError, errors.CheckpointError) as error:
          why = errors.cause(error)
      if why:
        shutil.rmtree(aside, ignore_errors=True)
      return why

    parts, wait = self._parts.finish(aside), self._config.timeout_s
    return agreement.reach(name, parts, name_it, wait)

  def _is_busy(self) -> bool:
    """Whether the save before is under way, and will be for a while."""
    saving = [self._saving[1]] if self._saving else []
    return bool(concurrent.futures.wait(saving, _PATIENCE_S).not_done)

  def _finish(self) -> None:
    """Waits for the save in the background; its failure becomes a warning."""
    if self._saving is None:
      return
    (step, future), self._saving = self._saving, None
    try:
      why = future.result()
    except errors.FAILURES as error:
      return self._give_up(step, error)
    if why:
      return self._fail(step, why)
    self._failures, self._newest = 0, step

  def _on_disk(self, step: int, state: Any) -> str | None:
    """Why a step cannot be saved; '': it is there; None: it can."""
    there = folders.steps(self._root)
    if step in there:
      return ''
    if self._newest is not None and self._newest not in there:
      logging.warning(
        'Checkpoint %d is gone from %s: who removed it? Saving goes on.',
        self._newest,
        self._root,
      )
      self._newest = None
    try:
      os.makedirs(self._root, exist_ok=True)
      folders.remove_partial(self._root)
      free = shutil.disk_usage(self._root).free
    except OSError as error:
      return errors.cause(error)
    if not os.access(self._root, os.W_OK | os.X_OK):
      return 'the folder cannot be written'
    needed = int(arrays.num_bytes(state) * _HEADROOM)
    if free < needed:
      return f'it needs {needed:,} bytes and {free:,} are free'
    return None

  def _give_up(self, step: int, error: Exception) -> None:
    """A save that failed in a way that the other processes do not know."""
    why = errors.cause(error)
    if processes.processes() > 1:
      failure = errors.CheckpointError(self._sentence(step, why))
      cause = error.__cause__ or error
      waited = isinstance(cause, jax.errors.JaxRuntimeError)
      if waited or session.is_loss(cause):
        failure = session.LostError(  # It waited; another may say more.
          f'another process did not finish its part of checkpoint {step} '
          f'within --checkpoint.timeout_s={self._config.timeout_s}; the older '
          'checkpoints are intact, and the same command goes on from them.'
        )
      session.fail(failure)
      return
    folders.remove_partial(self._root)
    self._fail(step, why)

  def _fail(self, step: int, why: str) -> None:
    self._failure = self._sentence(step, why)
    self._failures += 1
    if self._failures >= self._config.max_failed_saves:
      if processes.process():
        time.sleep(_FIRST_S)
      raise errors.CheckpointError(
        f'{self._failure} That was the last of --checkpoint.max_failed_saves='
        f'{self._config.max_failed_saves}.'
      )
    logging.warning('%s', self._failure)

  def _sentence(self, step: int, why: str) -> str:
    return (
      f'Checkpoint {step} was not written to {self._root}: {why}; the older '
      'checkpoints are intact. Make room there for the next one.'
    )
