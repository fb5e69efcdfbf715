# SPDX-License-Identifier: Apache-2.0
"""Saves that failed: a warning each, and an error when too many have in a row.

One sentence says which step, why, and what to do.
"""

import contextlib
import logging
import os
import time

import jax

from zaya_jax import config as config_lib
from zaya_jax.checkpoint import errors
from zaya_jax.checkpoint.reading import ownership
from zaya_jax.runtime import processes, run_files, session, supervised

_FIRST_S = 1.0  # For process 0 to say what all know.


class Failures:
  """The failed saves of a run.

  Args:
    root: the folder of the checkpoints.
    config: how many may fail in a row.

  Attributes:
    newest: why the newest save failed; '': it did not.
  """

  def __init__(self, root: str, config: config_lib.CheckpointConfig):
    self._root, self._config = root, config
    self._count = 0
    self._away = False  # The newest save failed for want of a lease store.
    self.newest = ''

  def check(self) -> None:
    """Raises CheckpointError if the newest save failed: 75 or 3."""
    if self.newest:
      raise errors.CheckpointError(
        self.newest, errors.LATER if self._away else errors.UNUSABLE
      )

  def reset(self) -> None:
    """A save is on disk."""
    self._count = 0

  def add(self, step: int, why: str, *, last: bool = False) -> None:
    """A save has failed, and all processes know it.

    One that waits for the lease store does not count: the disk is in order, and
    if the store stays away, the lease ends the run, which can go on later.

    Args:
      step: that was saved.
      why: in words.
      last: whether no save follows: then `Manager.wait` raises `newest`, and
        nothing is logged.

    Raises:
      CheckpointError: if as many in a row have failed as may.
    """
    most = self._config.max_failed_saves
    self.newest = self._sentence(step, why, ', and repeat the command')
    self._away = ownership.is_unconfirmed(why)
    if self._away:
      if not last:
        logging.warning('%s', self.newest)
      return
    self._count += 1
    self._tell_supervisor(step, self.newest)
    if self._count < most:
      if not last:
        text = self._sentence(step, why, ' before the next save')
        logging.warning('%s', text)
      return
    if processes.process():
      time.sleep(_FIRST_S)
    why += f' (the last of --checkpoint.max_failed_saves={most})'
    raise errors.CheckpointError(
      self._sentence(step, why, ', and repeat the command')
    )

  def give_up(self, step: int, error: Exception) -> None:
    """Ends all processes: this one failed as the others do not know."""
    cause = error.__cause__ or error
    failure: Exception
    if isinstance(cause, jax.errors.JaxRuntimeError) or session.is_loss(cause):
      failure = session.LostError(  # It waited; another may say more.
        f'another process did not finish its part of checkpoint {step} within '
        f'--checkpoint.timeout_s={self._config.timeout_s}; the older '
        'checkpoints are intact, and the same command goes on from them.'
      )
    else:
      why = errors.cause(error)
      text = self._sentence(step, why, ', and repeat the command')
      failure = errors.CheckpointError(text)
    session.fail(failure)

  def _tell_supervisor(self, step: int, why: str) -> None:
    """It counts failed saves over generations; lines of logs it only warns."""
    place = supervised.place()
    if place and not processes.process():
      with contextlib.suppress(OSError):  # The disk may be full.
        run_files.incident(
          os.path.dirname(self._root),
          kind='save_failed',
          step=step,
          seen=why,
          source='trainer',
          generation=place.generation,
        )

  def _sentence(self, step: int, why: str, then: str) -> str:
    if ownership.is_unconfirmed(why):
      return (
        f'Checkpoint {step} was not written to {self._root}: {why}; the older '
        'ones are intact. The next save asks again; if no answer comes before '
        'the lease has run out, this run ends with 75 and can be repeated.'
      )
    return (
      f'Checkpoint {step} was not written to {self._root}: {why}; the older '
      f'ones are intact; make room there or repair the disk{then}.'
    )
