# SPDX-License-Identifier: Apache-2.0
"""For how long this supervisor owns its run: a lease that it renews."""

import asyncio
import contextlib
import math
import time
from types import TracebackType
from typing import Any, Self

from zaya_jax import config as config_lib
from zaya_jax.aegis.supervisor.nodes import background
from zaya_jax.checkpoint import lock
from zaya_jax.checkpoint.reading import ownership
from zaya_jax.runtime import lease, run_files

_RELEASE_S = 5.0
_POLL_S = 0.5


class Tenure:
  """Owns a run from `with` to its end.

  Args:
    config: of the run; its --aegis.lease says where owners are known.

  Attributes:
    token: of this owner.
    address: of the lease store.
    lost: why the run is not owned any more; '' while it is.

  Raises:
    CheckpointError: on entry, if somebody trains in the run directory.
    LeaseError: on entry, if somebody else owns the run (exit code 2) or
      the store does not answer.
  """

  token: lease.Token

  def __init__(self, config: config_lib.Config):
    self._config, self.address = config, config.aegis.lease
    self._ttl_s = config.aegis.lease_s
    self.lost = ''
    self._until = 0.0
    self._open = contextlib.ExitStack()

  def __enter__(self) -> Self:
    run_dir = self._config.run_dir
    with contextlib.ExitStack() as stack:
      self._lock(run_dir, stack)
      run_id = run_files.run_id(run_dir)
      self.store = lease.open(self.address, run_id=run_id, run_dir=run_dir)
      self._acquire()
      if self.address not in ownership.LOCAL:
        stack.enter_context(ownership.using(self.store, self.token))
      self._open = stack.pop_all()
    return self

  def __exit__(
    self,
    kind: type[BaseException] | None,
    value: BaseException | None,
    traceback: TracebackType | None,
  ) -> None:
    self._open.close()
    with contextlib.suppress(lease.LeaseError):  # It runs out by itself.
      self.store.release(self.token)
    self.store.close()

  def remaining_s(self) -> float:
    """Seconds for which the run is surely owned."""
    return max(0.0, self._until - time.monotonic())

  def write(self, key: str, value: dict[str, Any]) -> None:
    """Sets a fact of the run. Raises LeaseError."""
    self.store.write(key, value, self.token)

  async def keep(self) -> None:
    """Renews the lease until it is lost."""
    while not self.lost:
      await asyncio.sleep(self._ttl_s / 4)
      try:
        until = await background.run(
          self.store.renew, self.token, limit_s=self._ttl_s / 2
        )
        self._until = until if self.store.expires else math.inf
      except lease.LostError as error:
        self.lost = str(error)
      except (lease.StoreError, TimeoutError):
        continue  # The old deadline stands.

  def _lock(self, run_dir: str, stack: contextlib.ExitStack) -> None:
    """Keeps training without a supervisor out of the run directory.

    Supervisors are the lease's affair: they may share the lock, as one that is
    frozen must not keep the next from beginning.
    """
    is_local = self.address in ownership.LOCAL
    held = lock.RunLock(run_dir, shared=not is_local, needed=is_local)
    if is_local:  # Its lease locks the directory itself.
      with held:
        return
    stack.enter_context(held)

  def _acquire(self) -> None:
    """Waits for a lease that nobody renews: of a supervisor that was killed."""
    patience = time.monotonic() + self._ttl_s + 2
    while True:
      before = time.monotonic()
      try:
        self.token = self.store.acquire(lease.owner_name(), self._ttl_s)
        break
      except lease.HeldError:
        if not self.store.expires or before > patience:
          raise
      time.sleep(_POLL_S)
    self._until = before + self._ttl_s if self.store.expires else math.inf
