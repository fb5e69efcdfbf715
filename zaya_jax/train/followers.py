# SPDX-License-Identifier: Apache-2.0
"""Who follows a run from outside: the trackers that --log.* names."""

import contextlib
import functools
import importlib
import pathlib
from collections.abc import Callable, Iterator

from zaya_jax import config as config_lib
from zaya_jax.metrics import trackers
from zaya_jax.runtime import processes

Followers = dict[str, trackers.Tracker]


@contextlib.contextmanager
def opened(
  config: config_lib.Config, tell: Callable[[str], None] = print
) -> Iterator[Followers]:
  """Inside, the trackers of a run by their flags; other processes have none.

  Args:
    config: of the run.
    tell: prints a line for people.

  Raises:
    UsageError: if a tracker cannot be opened as it is set up.
  """
  found: Followers = {}
  with contextlib.ExitStack() as stack:
    if processes.process() == 0:
      pathlib.Path(config.run_dir).mkdir(parents=True, exist_ok=True)
      for flag, open_ in _asked(config, stack, tell).items():
        found[flag] = open_()
        stack.callback(found[flag].close)
    yield found


def _asked(config, stack, tell) -> dict[str, Callable[[], trackers.Tracker]]:
  """How to open what is asked for; a module is imported for its flag alone."""
  log = config.log
  found: dict[str, Callable[[], trackers.Tracker]] = {}
  for name in ('wandb', 'mlflow'):
    if getattr(log, name):
      found[f'--log.{name}'] = functools.partial(_fed, name, config)
  if log.metrics_port:
    found['--log.metrics_port'] = lambda: _prometheus(config, stack, tell)
  return found


def _fed(name, config) -> trackers.Tracker:
  """A tracker behind a thread, on which also its library is imported."""
  from zaya_jax.metrics.trackers import feed

  def make():
    module = importlib.import_module(f'zaya_jax.metrics.trackers.{name}')
    return module.Tracker(config)

  return feed.Feed(make)


def _prometheus(config, stack, tell) -> trackers.Tracker:
  """Gauges, behind the door that a supervisor opens."""
  from zaya_jax.aegis.supervisor import endpoint
  from zaya_jax.metrics.trackers import prometheus

  port, bind = config.log.metrics_port, config.aegis.bind
  tracker = prometheus.Tracker()
  try:
    server = endpoint.Server(port, tracker.registry, lambda: '', bind)
  except OSError as error:
    raise config_lib.UsageError(
      f'--log.metrics_port={port} cannot be opened on --aegis.bind={bind} '
      f'({error.strerror}); choose others, or no port (0).'
    ) from error
  if warning := endpoint.exposes(bind, port):
    tell(warning)
  server.start()
  stack.callback(server.close)
  return tracker
