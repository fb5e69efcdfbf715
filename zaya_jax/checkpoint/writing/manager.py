# SPDX-License-Identifier: Apache-2.0
"""The checkpoints of one run: when a state is saved, and what if it cannot be.

A save runs in the background (`saver`). One that fails (`failures`) never
touches an older checkpoint.
"""

import concurrent.futures
import dataclasses
import logging
import os
import time
from typing import Any, Self

from zaya_jax import config as config_lib
from zaya_jax.checkpoint import arrays, errors, folders, seal
from zaya_jax.checkpoint.reading import aside, ownership, reader, resuming
from zaya_jax.checkpoint.writing import failures, leftovers, saver
from zaya_jax.config import exit_codes
from zaya_jax.runtime import fence, processes, run_files

_HEADROOM = 1.2  # Free bytes that a save asks for, per byte of state.
_PATIENCE_S = 5.0  # A save that is not urgent waits for the one before it.


@dataclasses.dataclass
class _Save:
  """A save that is under way.

  Attributes:
    step: that is saved.
    why: a future: why the save failed, or ''.
    stood_s: how long training stood still for it.
  """

  step: int
  why: concurrent.futures.Future[str]
  stood_s: float = 0.0


class Manager:
  """The checkpoints of one run: the newest, the best and every k-th stay.

  Args:
    run_dir: the run directory; checkpoints/ is made in it.
    config: how many to keep, and how long a save may take.
  """

  def __init__(self, run_dir: str, config: config_lib.CheckpointConfig):
    self._run_dir, self._root = os.path.abspath(run_dir), folders.root(run_dir)
    self._config = config
    self._failures = failures.Failures(self._root, config)
    self._begun: int | None = None  # The step of the newest save.
    self._newest: int | None = None  # Saved by this manager.
    self._saving: _Save | None = None
    self._sealed: list[_Save] = []  # That nobody has asked for yet.
    if processes.process() == 0:
      os.makedirs(self._root, exist_ok=True)
      run_files.run_id(run_dir)
      leftovers.clear(self._root)
      for name in folders.strangers(self._root):
        path = os.path.join(self._root, name)
        logging.warning('%s is ignored: a checkpoint is named STEP.', path)
    processes.barrier('cleared')
    self._saver = saver.Saver(self._root, config)

  def latest_step(self) -> int | None:
    """The step of the newest valid checkpoint; newer ones are set aside.

    Raises:
      CheckpointError: if there are checkpoints and none is valid.
    """
    return resuming.newest(self._run_dir, repair=True)

  def check(self, step: int | None) -> None:
    """Refuses to go on from a step before the newest that was ever sealed.

    Raises:
      CheckpointError: until --checkpoint.action=accept has been done.
    """
    resuming.check(self._run_dir, step)

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
      urgent: waits for the save before as long as it takes, and `wait` raises
        if it fails; else waits for seconds, and then skips this step.

    Returns:
      Whether the step is on disk or on its way there; `sealed` tells later.

    Raises:
      CheckpointError: if as many saves in a row have failed as may.
      FencedError: if another generation goes on in the place of this one.
    """
    started = time.monotonic()
    if not urgent and processes.first_says(self._is_busy):
      logging.warning(
        'Step %d is not saved: the save of step %d is still under way; raise '
        '--checkpoint.every, or find out why %s is slow.',
        step,
        self._begun,
        self._root,
      )
      return False
    self._finish()
    self._failures.newest = ''
    found = processes.first_says(lambda: self._on_disk(step, state))
    if found is not None:
      if found:
        self._failures.add(step, found, last=urgent)
      return not found
    self._begun = step
    try:
      meta = {**meta, 'data_index': data_index}
      why = self._saver.begin(step, state, meta)
    except errors.FAILURES as error:
      self._fail(step, error, last=urgent)
      return False
    self._saving = saving = _Save(step, why)
    if self._config.host_memory_gb:
      self._finish()  # What is not copied yet must not be donated.
    saving.stood_s = time.monotonic() - started
    return not self._failures.newest

  def sealed(self) -> list[tuple[int, float]]:
    """What is on disk since the last call, in this process: it waits for none.

    Returns:
      Steps, and the seconds for which training stood still for each.

    Raises:
      CheckpointError: as `save`.
    """
    if self._saving and self._saving.why.done():
      self._finish()
    found, self._sealed = self._sealed, []
    return [(save.step, save.stood_s) for save in found]

  def wait(self) -> None:
    """Waits until the newest save is on disk.

    Raises:
      CheckpointError: if it failed.
    """
    self._finish(last=True)
    self._failures.check()

  def amend(self, step: int, metrics: dict[str, float]) -> None:
    """Adds what was measured of a saved step to its seal, in the background."""
    if processes.process() == 0:
      directory = self.directory(step)
      self._saver.afterwards(folders.amend, directory, metrics)

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
        aside.move(self.directory(step), error.reason)
      error.exit_code = exit_codes.STOPPED
      raise

  def close(self) -> None:
    """Waits for the newest save and lets go. Raises as `wait`."""
    try:
      self.wait()
    finally:
      self._saver.close()

  def __enter__(self) -> Self:
    return self

  def __exit__(self, kind, *unused) -> None:
    if kind is None:
      self.close()
    elif processes.processes() == 1:  # Else all end now; nobody may wait.
      try:
        self._finish()
      except (errors.CheckpointError, fence.FencedError):
        pass  # An error is on its way already: do not hide it.
      self._saver.close()

  def _outlived(self, step: int) -> bool:
    """Sets a checkpoint aside that a given-up generation has made meanwhile."""
    directory = self.directory(step)
    found = resuming.outlived(seal.read(directory), fence.began(self._run_dir))
    if found:
      aside.move(directory, 'zombie')
    return bool(found)

  def _is_busy(self) -> bool:
    """Whether the save before is under way, and will be for a while."""
    saving = [self._saving.why] if self._saving else []
    return bool(concurrent.futures.wait(saving, _PATIENCE_S).not_done)

  def _finish(self, *, last: bool = False) -> None:
    """Waits for the save in the background; its failure becomes a warning."""
    if self._saving is None:
      return
    saving, self._saving = self._saving, None
    try:
      why = saving.why.result()
    except fence.FencedError:
      raise  # What lies there is another generation's.
    except errors.FAILURES as error:
      return self._fail(saving.step, error, last)
    if why:
      return self._failures.add(saving.step, why, last=last)
    self._failures.reset()
    self._newest = saving.step
    self._sealed.append(saving)

  def _fail(self, step: int, error: Exception, last: bool) -> None:
    """A save that failed in a way that the other processes do not know."""
    if processes.processes() > 1:
      return self._failures.give_up(step, error)
    leftovers.clear(self._root)
    self._failures.add(step, errors.cause(error), last=last)

  def _on_disk(self, step: int, state: Any) -> str | None:
    """Why a step cannot be saved; '': it is there; None: it can."""
    try:
      ownership.check_fence()
    except ownership.UnconfirmedError as error:
      return str(error)
    except OSError as error:
      return f'the newest generation is not known ({errors.cause(error)})'
    there = folders.steps(self._root)
    if step in there and not self._outlived(step):
      return ''
    if self._newest not in (None, *there):
      logging.warning(
        'Checkpoint %d is gone from %s: who removed it? Saving goes on.',
        self._newest,
        self._root,
      )
      self._newest = None
    needed = int(arrays.num_bytes(state) * _HEADROOM)
    return leftovers.obstacle(self._root, needed) or None
