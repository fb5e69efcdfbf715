# SPDX-License-Identifier: Apache-2.0
"""What Orbax writes for us, and how a process learns that its part is done.

If one process fails, Orbax lets the others wait for its whole timeout, without
a reason. So a part that fails is remembered here instead of raised: all
processes get to the end of the save, which is then not sealed.
"""

import dataclasses
import os
from typing import Any

import jax
import orbax.checkpoint as ocp

from zaya_jax import config as config_lib
from zaya_jax.checkpoint import errors, folders, seal
from zaya_jax.runtime import processes

_LARGE = 2**28  # Bytes of an array of which each layer can be read alone.


class Parts:
  """What this process has written of one checkpoint."""

  def __init__(self):
    self._failed: str | None = None

  def reset(self) -> None:
    """Another save begins."""
    self._failed = None

  def fail(self, error: BaseException) -> None:
    """A part could not be written; of several the first says why."""
    self._failed = self._failed or errors.cause(error)

  def finish(self, directory: str) -> seal.Files | str:
    """The files that only this process has written, hashed and synced.

    Returns:
      By their names in `directory`; or why there is no use in it.
    """
    if self._failed:
      return self._failed
    if processes.processes() == 1:
      return {}  # Who seals hashes them.
    own = f'{folders.STATE}/ocdbt.process_{processes.process()}'
    names = [
      os.path.relpath(os.path.join(folder, name), directory)
      for folder, _, files in os.walk(os.path.join(directory, own))
      for name in files
    ]
    try:
      return seal.digest(directory, names, sync=True)
    except OSError as error:
      return errors.cause(error)


def checkpointer(
  config: config_lib.CheckpointConfig, parts: Parts
) -> ocp.AsyncCheckpointer:
  """Orbax, writing the items 'state' and 'meta' in the background."""
  options = {}
  if config.host_memory_gb:
    # In stages of arrays that fit together; a larger array alone.
    options = {
      'save_device_host_concurrent_gb': config.host_memory_gb,
      'is_prioritized_key_fn': lambda path: False,
    }
  items = ocp.handlers.DefaultCheckpointHandlerRegistry()
  items.add(folders.STATE, ocp.args.PyTreeSave, _State(parts, **options))
  items.add(folders.META, ocp.args.JsonSave, _Meta(parts))
  return ocp.AsyncCheckpointer(
    ocp.CompositeCheckpointHandler(handler_registry=items),
    async_options=ocp.AsyncOptions(timeout_secs=config.timeout_s),
  )


def save_args(state: Any) -> ocp.args.PyTreeSave:
  """How the arrays of a state are cut: large ones also along their first axis.

  So `lazy.leaves` reads one layer of them.
  """

  def of(leaf):
    large = leaf.ndim > 2 and leaf.nbytes > _LARGE
    return ocp.SaveArgs(shard_axes=(0,) if large else ())

  return ocp.args.PyTreeSave(state, save_args=jax.tree.map(of, state))


class _Soft:
  """A handler of Orbax; among several processes its failures are remembered."""

  def __init__(self, parts: Parts, **options):
    super().__init__(**options)
    self._parts = parts

  @classmethod
  def typestr(cls) -> str:
    """The name on disk, that of the format."""
    return cls.__mro__[2].typestr()  # type: ignore[attr-defined]

  async def async_save(self, *args, **kwargs) -> list[Any]:
    """Starts to write."""
    started = await super().async_save(*args, **kwargs)  # type: ignore[misc]
    return [_Part(part, self._parts) for part in started or ()]

  def finalize(self, directory: Any) -> None:
    """Process 0 merges what all have written."""
    try:
      super().finalize(directory)  # type: ignore[misc]
    except Exception as error:
      if processes.processes() == 1:
        raise
      self._parts.fail(error)


class _State(_Soft, ocp.PyTreeCheckpointHandler):
  """The arrays."""


class _Meta(_Soft, ocp.JsonCheckpointHandler):
  """The JSON."""


@dataclasses.dataclass(frozen=True)
class _Part:
  """What is being written, as Orbax's futures."""

  part: Any
  parts: Parts

  def result(self, timeout: float | None = None) -> Any:
    """Waits for it."""
    try:
      return self.part.result(timeout=timeout)
    except Exception as error:
      if processes.processes() == 1:
        raise
      self.parts.fail(error)
