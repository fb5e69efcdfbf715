# SPDX-License-Identifier: Apache-2.0
"""How the processes of one run meet and end.

Fail-stop: when one process fails, all end with its exit code, and the same
command goes on from the newest checkpoint.
"""

import contextlib
import ctypes
import dataclasses
import itertools
import json
import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from typing import Any

import jax

from zaya_jax import config as config_lib
from zaya_jax.config import exit_codes
from zaya_jax.runtime import beats, log, processes, rank

_ENDED = 'zaya/ended'
_SPREAD_S = 1.0  # For the others to read why this process ends.


class LostError(RuntimeError):
  """Another process is missing or gone; the same command goes on."""

  exit_code = exit_codes.STOPPED


@contextlib.contextmanager
def join(config: config_lib.Config, text: str) -> Iterator[config_lib.Config]:
  """Meets the other processes of the run, where there are any.

  An error within ends this process and the others, with its exit code.

  Args:
    config: of the run; `distributed` of it says how to meet. Without a run_dir
      warnings are kept nowhere.
    text: all settings that must be equal, one a line.

  Yields:
    The config without the place of this process, so that config.flags repeats
    the run under any launcher.

  Raises:
    UsageError: if the place of this process is incomplete.
    LostError: if the processes do not meet in time.
  """
  place = rank.find(config.distributed, os.environ)
  where: dict[str, Any] = {'coordinator': '', 'processes': 0, 'process': -1}
  config = dataclasses.replace(
    config, distributed=dataclasses.replace(config.distributed, **where)
  )
  if place.processes == 1:
    kept = log.File(log_file(config.run_dir)) if config.run_dir else None
    with kept or contextlib.nullcontext():
      yield config
    return
  _connect(place, config.distributed)
  try:
    watch = threading.Thread(target=_watch, daemon=True)
    watch.start()
    _compare(text)
    if processes.process():  # The terminal is process 0's.
      logging.getLogger().handlers.clear()
    if config.run_dir:
      logging.getLogger().addHandler(log.File(log_file(config.run_dir)))
    yield config
    processes.barrier('end')
    if processes.process() == 0:
      processes.client().key_value_set(_ENDED, json.dumps([0, '']))
    watch.join()
    jax.distributed.shutdown()
  except BaseException as error:
    fail(error)


def fail(error: BaseException) -> None:
  """Tells all processes why this one ends, and ends it, from any thread.

  At once: Python's own way out waits for the others at a barrier of jax.
  """
  code = getattr(error, 'exit_code', exit_codes.INTERNAL)
  spread_s = 0.0 if beats.is_watched() else _SPREAD_S
  if isinstance(error, LostError):
    time.sleep(spread_s)  # Who has failed may say why: `_watch` ends us.
  elif is_loss(error):
    time.sleep(spread_s)
    error, code = LostError(f'{_GONE} ({str(error)[:100]})'), exit_codes.STOPPED
  elif isinstance(error, KeyboardInterrupt):
    error, code = LostError('stopped.'), exit_codes.STOPPED
  if not hasattr(error, 'exit_code'):  # Nobody wrote a sentence for it.
    logging.getLogger().error('%s', traceback.format_exc())
  _tell(str(error))
  _reason[:] = ['', code]
  if beats.is_watched():  # The agent ends the others.
    beats.fail(code, str(error))
    os._exit(code)
  why = f'process {processes.process()}: {error}'
  with contextlib.suppress(jax.errors.JaxRuntimeError):
    processes.client().key_value_set(_ENDED, json.dumps([code, why]))
    if processes.process() == 0:
      time.sleep(_SPREAD_S)
  sys.stdout.flush()
  os._exit(code)


def is_loss(error: BaseException) -> bool:
  """Whether a collective failed because another process is gone."""
  # Reading the result of a failed one raises ValueError.
  kinds = (jax.errors.JaxRuntimeError, ValueError)
  return isinstance(error, kinds) and 'gloo' in str(error).lower()


def log_file(run_dir: str) -> str:
  """The path of the log of this process."""
  if processes.process() == 0:
    return os.path.join(run_dir, 'log.txt')
  return os.path.join(run_dir, 'logs', f'process_{processes.process():05d}.log')


def _connect(place: rank.Place, config: config_lib.DistributedConfig) -> None:
  flags = rank.timeout_flags(config.collective_timeout_s)
  os.environ['XLA_FLAGS'] = f'{flags} {os.environ.get("XLA_FLAGS", "")}'
  jax.config.update('jax_cpu_collectives_implementation', 'gloo')
  # Signals are this program's own; jax would swallow SIGTERM.
  jax.config.update('jax_enable_preemption_service', False)
  missing = (
    f'process {place.process} of {place.processes} did not meet the others at '
    f'{place.coordinator} within --distributed.initialization_timeout_s='
    f'{config.initialization_timeout_s}; see whether process 0 runs there, its '
    'port is free and all were started, then repeat the command.'
  )
  # jax calls abort() when a heartbeat is missed, or process 0 gives up.
  _reason[:] = [missing, exit_codes.STOPPED]
  ctypes.CDLL(None).signal(signal.SIGABRT, _aborted)
  try:
    jax.distributed.initialize(
      place.coordinator,
      place.processes,
      place.process,
      local_device_ids=place.devices,
      cluster_detection_method='deactivate',
      coordinator_bind_address=_listen_at(place.coordinator),
      initialization_timeout=config.initialization_timeout_s,
      heartbeat_timeout_seconds=config.heartbeat_timeout_s,
      shutdown_timeout_seconds=config.heartbeat_timeout_s,
    )
  except RuntimeError as error:
    raise LostError(missing) from error
  _reason[:] = [_GONE, exit_codes.STOPPED]


def _listen_at(coordinator: str) -> str | None:
  """The address at which process 0 listens; None: on all networks.

  jax has no passwords, so a run on one machine listens there alone. A host name
  does not tell which of the networks of the host the others use.
  """
  host = coordinator.rpartition(':')[0]
  return coordinator if host in ('127.0.0.1', 'localhost') else None


def _compare(text: str) -> None:
  """Refuses settings that are not those of process 0."""
  theirs = processes.first_says(lambda: text)
  pairs = itertools.zip_longest(
    text.splitlines(), theirs.splitlines(), fillvalue='another version'
  )
  for mine, their in pairs:
    if mine != their:
      raise config_lib.UsageError(
        f'process {processes.process()} was started with {mine} and process 0 '
        f'with {their}; start all with the same flags and the same program.'
      )
  processes.barrier('same settings')


def _watch() -> None:
  """Ends this process when another one says that it has failed."""
  client = processes.client()
  try:
    said = client.blocking_key_value_get(_ENDED, processes.FOREVER_MS)
  except jax.errors.JaxRuntimeError:
    said = json.dumps([exit_codes.STOPPED, _GONE])
  code, why = json.loads(said)
  if code and not why.startswith(f'process {processes.process()}:'):
    if processes.process() == 0 or why == _GONE:
      _tell(why)
    if processes.process() == 0:  # The store ends with it: others read first.
      time.sleep(_SPREAD_S)
    beats.fail(code, why)
    os._exit(code)


def _tell(why: str) -> None:
  print(f'zaya_jax: error: {why}', file=sys.stderr, flush=True)


_GONE = (
  'another process is gone; repeat the command to go on from the newest '
  'checkpoint'
)
# Why jax would abort; the exit code.
_reason: list[Any] = [_GONE, exit_codes.STOPPED]


@ctypes.CFUNCTYPE(None, ctypes.c_int)
def _aborted(number: int) -> None:
  why, code = _reason
  if why:
    _tell(why)
  if beats.is_watched():  # An agent is to see by what it ended.
    ctypes.CDLL(None).signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)  # It comes when this handler is left.
    return
  os._exit(code)
