# SPDX-License-Identifier: Apache-2.0
"""Who follows a run from outside: the trackers that --log.* names."""

import contextlib
import functools
import importlib
import pathlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

from zaya_jax import config as config_lib
from zaya_jax.metrics import trackers
from zaya_jax.runtime import processes

Following = dict[str, trackers.Tracker]
# Of the settings and a registry of prometheus_client; makes what can be closed.
Serve = Callable[[config_lib.Config, Any], Any]


@contextlib.contextmanager
def opened(config: config_lib.Config, serve: Serve) -> Iterator[Following]:
  """Inside, the trackers of a run by their flags; other processes have none.

  Args:
    config: of the run.
    serve: answers Prometheus.

  Raises:
    UsageError: if a tracker cannot be opened as it is set up.
  """
  found: Following = {}
  with contextlib.ExitStack() as stack:
    if processes.process() == 0:
      pathlib.Path(config.run_dir).mkdir(parents=True, exist_ok=True)
      for flag, open_ in _asked(config, serve, stack).items():
        found[flag] = open_()
        stack.callback(_close, flag, found[flag])
    yield found


def _close(flag, tracker) -> None:
  """The reporter has ended by now: what is lost is told on stderr."""
  try:
    tracker.close()
  except OSError as error:
    print(f'{flag} has not got all: {error}.', file=sys.stderr, flush=True)


def _asked(config, serve, stack) -> dict[str, Callable[[], trackers.Tracker]]:
  """How to open what is asked for; a module is imported for its flag alone."""
  log = config.log
  found: dict[str, Callable[[], trackers.Tracker]] = {}
  for name in ('wandb', 'mlflow'):
    if getattr(log, name):
      found[f'--log.{name}'] = functools.partial(_fed, name, config)
  if log.metrics_port:
    found['--log.metrics_port'] = lambda: _exported(config, serve, stack)
  return found


def _fed(name, config) -> trackers.Tracker:
  """A tracker behind a thread, on which also its library is imported."""
  from zaya_jax.metrics.trackers import feed

  def make():
    module = importlib.import_module(f'zaya_jax.metrics.trackers.{name}')
    return module.Tracker(config)

  return feed.Feed(make)


def _exported(config, serve, stack) -> trackers.Tracker:
  from zaya_jax.metrics.trackers import prometheus

  tracker = prometheus.Tracker()
  stack.callback(serve(config, tracker.registry).close)
  return tracker
