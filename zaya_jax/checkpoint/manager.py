# SPDX-License-Identifier: Apache-2.0
"""Saves training states in the background and decides which ones stay.

A save that fails (a full disk, most often) never stops training and never
touches an older checkpoint: it is a warning, and an error only if it is the
last one. Of several processes each writes its part; if one cannot, the others
would wait for it, so it ends them all.
"""

import dataclasses
import logging
import math
import os
import shutil
from collections.abc import Callable
from typing import Any, Self

import jax
import orbax.checkpoint as ocp

from zaya_jax import config as config_lib
from zaya_jax import distributed
from zaya_jax.aegis import rank
from zaya_jax.checkpoint import arrays, errors, layout, reader

_HEADROOM = 1.2  # Free bytes that a save asks for, per byte of state.
_LARGE = 2**28  # Bytes of an array of which each layer can be read alone.


class Manager:
  """The checkpoints of one run: the newest, the best and every k-th stay.

  Args:
    run_dir: the run directory; checkpoints/ is made in it.
    config: how many to keep, and how long a save may take.
    best_metric: of meta['metrics']; the checkpoint with the lowest is kept.
  """

  def __init__(
    self,
    run_dir: str,
    config: config_lib.CheckpointConfig,
    *,
    best_metric: str = 'val/bpb',
  ):
    reader.silence()
    self._root = layout.root(run_dir)
    self._config = config
    self._best_metric = best_metric
    self._saving: int | None = None  # The step that is being written.
    self._failure: str | None = None  # Why the newest save failed.
    self._orbax = self._open()

  def latest_step(self) -> int | None:
    """The step of the newest complete checkpoint on disk."""
    return distributed.first_says(
      lambda: max(layout.steps(self._root), default=None)
    )

  def directory(self, step: int) -> str:
    """The path of the checkpoint of `step`."""
    return os.path.join(self._root, str(step))

  def save(
    self, step: int, state: Any, *, data_index: int, meta: dict[str, Any]
  ) -> bool:
    """Starts to save; the arrays may be donated as soon as this returns.

    Waits for the save before. A failure of that one, or of this one, is logged
    and training may go on; of several processes, all end. A step that is on
    disk already is not saved again.

    Args:
      step: optimizer steps done.
      state: a tree of jax arrays.
      data_index: the position in the data.
      meta: of `meta.describe`; 'metrics' in it decides about the best.

    Returns:
      Whether the step is on disk or on its way there.
    """
    rank.check_fence()
    self._finish()
    self._failure = None
    found = distributed.first_says(lambda: self._on_disk(step, state))
    if found is not None:
      if found:
        self._warn(step, found)
      return not found
    meta = {**meta, 'arrays': arrays.describe(state), 'data_index': data_index}
    args = ocp.args.Composite(
      state=ocp.args.StandardSave(state, jax.tree.map(_save_args, state)),
      meta=ocp.args.JsonSave(meta),
    )
    self._saving = step
    try:
      self._orbax.save(step, args=args, metrics=self._rank(meta), force=True)
    except reader.FAILURES as error:
      self._fail(step, error)
      return False
    return True

  def wait(self) -> None:
    """Waits until the newest save is on disk.

    Raises:
      CheckpointError: if it failed.
    """
    self._finish()
    if self._failure:
      raise errors.CheckpointError(self._failure)

  def restore(self, step: int, abstract: Any) -> tuple[Any, int, dict]:
    """Reads a checkpoint of this run, as `reader.restore`."""
    return reader.restore(self.directory(step), abstract)

  def close(self) -> None:
    """Waits for the newest save and lets go. Raises as `wait`."""
    try:
      self.wait()
    finally:
      self._orbax.close()

  def __enter__(self) -> Self:
    return self

  def __exit__(self, kind, *unused) -> None:
    if kind is None:
      self.close()
      return
    if distributed.processes() > 1:
      return  # All end now; nobody may wait for the others.
    self._finish()  # An error is on its way already: do not hide it.
    self._orbax.close()

  def _on_disk(self, step: int, state: Any) -> str | None:
    """Why a step cannot be saved; '': it is there; None: it can."""
    if step in layout.steps(self._root):
      return ''
    needed = int(arrays.num_bytes(state) * _HEADROOM)
    free = shutil.disk_usage(self._root).free
    if free < needed:
      return f'it needs {needed:,} bytes and {free:,} are free'
    return None

  def _open(self) -> ocp.CheckpointManager:
    """Opens the folder and clears away what a killed save left in it."""
    if distributed.process() == 0:
      os.makedirs(self._root, exist_ok=True)
      layout.set_aside(self._root)
      layout.remove_partial(self._root)
    distributed.barrier('cleared')
    options = ocp.CheckpointManagerOptions(
      preservation_policy=self._kept(),
      best_fn=self._value,  # So that Orbax stores it; the policy decides.
      async_options=ocp.AsyncOptions(timeout_secs=self._config.timeout_s),
    )
    registry = None
    if distributed.processes() > 1:
      handler = _Handler(lambda error: self._end(self._saving, error))
      registry = ocp.handlers.DefaultCheckpointHandlerRegistry()
      registry.add(layout.STATE, ocp.args.StandardSave, handler)
    try:
      return ocp.CheckpointManager(
        self._root, options=options, handler_registry=registry
      )
    except ValueError as error:
      raise errors.CheckpointError(
        f'{self._root} holds a checkpoint with a damaged metrics file '
        f'({errors.cause(error)}); find STEP/metrics/metrics that is not JSON '
        'and move that checkpoint away.'
      ) from error

  def _kept(self) -> Any:
    policies = ocp.checkpoint_managers
    kept = [
      policies.LatestN(self._config.keep),
      policies.BestN(
        n=1,
        get_metric_fn=self._value,
        reverse=True,
        keep_checkpoints_without_metrics=False,
      ),
    ]
    if self._config.keep_every:
      kept.append(policies.EveryNSteps(self._config.keep_every))
    return policies.AnyPreservationPolicy(kept)

  def _value(self, metrics: dict[str, float]) -> float:
    return metrics.get(self._best_metric, math.inf)

  def _rank(self, meta: dict[str, Any]) -> dict[str, float]:
    """The metric of a checkpoint; unknown or not finite counts as the worst."""
    value = meta.get('metrics', {}).get(self._best_metric)
    known = value is not None and math.isfinite(value)
    return {self._best_metric: float(value) if known else math.inf}

  def _finish(self) -> None:
    """Waits for the save in the background; its failure becomes a warning."""
    try:
      self._orbax.wait_until_finished()
    except reader.FAILURES as error:
      self._fail(self._saving, error)
    self._saving = None

  def _fail(self, step: int | None, error: Exception) -> None:
    if distributed.processes() > 1:
      self._end(step, error)
    self._warn(step, errors.cause(error))
    if self._saving is not None:
      # Only a fresh manager forgets the step and removes the half of it.
      self._orbax.close()
      self._saving = None
      self._orbax = self._open()

  def _warn(self, step: int | None, why: str) -> None:
    self._failure = self._sentence(step, why)
    logging.warning('%s', self._failure)

  def _sentence(self, step: int | None, why: str) -> str:
    return (
      f'Checkpoint {step} was not written to {self._root}: {why}; the older '
      'checkpoints are intact. Make room there for the next one.'
    )

  def _end(self, step: int | None, error: Exception) -> None:
    """Ends all processes: none can go on without the part of this one."""
    failure = errors.CheckpointError(self._sentence(step, errors.cause(error)))
    cause = error.__cause__ or error
    waited = isinstance(cause, jax.errors.JaxRuntimeError)
    if waited or distributed.is_loss(cause):
      failure = distributed.LostError(  # It waited; another may say more.
        f'another process did not finish its part of checkpoint {step} within '
        f'--checkpoint.timeout_s={self._config.timeout_s}; the older '
        'checkpoints are intact, and the same command goes on from them.'
      )
    distributed.fail(failure)


class _Handler(ocp.StandardCheckpointHandler):
  """Tells of a part that cannot be written as soon as this process knows.

  Orbax itself tells when it has waited for the other processes.
  """

  def __init__(self, tell: Callable[[Exception], None]):
    super().__init__()
    self._tell = tell

  @classmethod
  def typestr(cls) -> str:
    """The name on disk, that of the format."""
    return ocp.StandardCheckpointHandler.typestr()

  async def async_save(self, *args, **kwargs) -> list[Any]:
    """Starts to write."""
    started = await super().async_save(*args, **kwargs)
    return [_Part(part, self._tell) for part in started or ()]


@dataclasses.dataclass(frozen=True)
class _Part:
  """What is being written, as Orbax's futures."""

  part: Any
  tell: Callable[[Exception], None]

  def result(self, timeout: float | None = None) -> Any:
    """Waits for it."""
    try:
      return self.part.result(timeout=timeout)
    except Exception as error:
      self.tell(error)
      raise


def _save_args(leaf: Any) -> ocp.SaveArgs:
  """Cuts large arrays along their first axis, for `lazy.leaves`."""
  large = leaf.ndim > 2 and leaf.nbytes > _LARGE
  return ocp.SaveArgs(shard_axes=(0,) if large else ())
