# SPDX-License-Identifier: Apache-2.0
"""--mode=checkpoints: JSON lines about checkpoints, oldest first.

Nothing here needs the devices of the run, nor jax: files and arrays are read on
the host. What does more than list is imported when it is asked for.
"""

import contextlib
import datetime
import importlib
import math
import os
from collections.abc import Iterator
from typing import Any

from zaya_jax import config as config_lib
from zaya_jax.checkpoint import errors, folders, kinds, meta, seal
from zaya_jax.checkpoint.actions import hashing
from zaya_jax.checkpoint.reading import lazy
from zaya_jax.config import exit_codes
from zaya_jax.runtime import rows

_METRICS = ('train/loss', 'val/loss', 'val/bpb')
# What a terminal has no room for.
_LEFT_OUT = ('sealed', 'data_index', 'val/loss', 'state_hash')
_ACTIONS = {
  'list': 'listing:entries',
  'verify': 'upkeep:verify',
  'seal': 'upkeep:seal_old',
  'diff': 'compare:main',
  'reshape': 'reshape:main',
  'prune': 'upkeep:prune',
  'accept': 'upkeep:accept',
}


def main(config: config_lib.Config) -> int:
  """Does `--checkpoint.action` with --source or, without it, --run_dir.

  Returns:
    The exit code: 3 if a checkpoint of which a line tells is not valid.

  Raises:
    CheckpointError: with exit code 2 if there is nothing to do it with.
  """
  source = config.source or config.run_dir
  module, _, name = _ACTIONS[config.checkpoint.action].partition(':')
  module = importlib.import_module(f'zaya_jax.checkpoint.actions.{module}')
  code, shown = exit_codes.DONE, rows.Rows(config.json, _LEFT_OUT)
  for line in getattr(module, name)(config, source):
    shown.print(line)
    if not line.get('valid', True):
      code = exit_codes.UNUSABLE
  return code


def entries(config: config_lib.Config, source: str) -> Iterator[dict[str, Any]]:
  """Yields what is known about each checkpoint."""
  del config
  for directory in folders.checkpoints(source):
    yield entry(directory)


def entry(directory: str) -> dict[str, Any]:
  """What is known about one checkpoint.

  Returns:
    step, bytes, sealed, valid, and, as far as it can be read: time, tokens,
    data_index, phase of a recipe, train/loss, val/loss, val/bpb, params_hash,
    state_hash; reason if not valid.
  """
  found: dict[str, Any] = {
    'step': folders.step_of(directory),
    'bytes': _bytes_on_disk(directory),
    'sealed': os.path.exists(os.path.join(directory, seal.NAME)),
  }
  try:
    body = folders.check(directory)
    found['time'] = _iso(body['time'])
    return {**found, **_content(directory), 'valid': True}
  except errors.CheckpointError as error:
    return {**found, 'valid': False, 'reason': str(error)}


def _content(directory: str) -> dict[str, Any]:
  about, leaves = described(directory)
  hashes = {path: hashing.leaf_hash(path, x[()]) for path, x in leaves.items()}
  metrics = about.get('metrics', {})
  known = [k for k in _METRICS if math.isfinite(metrics.get(k, math.nan))]
  return {
    'tokens': about.get('tokens'),
    'data_index': about['data_index'],
    **({'phase': about['phase']} if 'phase' in about else {}),
    **{name: metrics[name] for name in known},
    'params_hash': hashing.params_hash(hashes),
    'state_hash': hashing.state_hash(hashes),
  }


def described(directory: str) -> tuple[dict[str, Any], dict[str, lazy.Leaf]]:
  """The meta of a checkpoint, and its arrays, which are those it tells of."""
  about, leaves = meta.read(directory), lazy.leaves(directory)
  found = {path: kinds.of(leaf) for path, leaf in leaves.items()}
  if differ := kinds.differences(found, about['arrays']):
    raise errors.CheckpointError(
      f'Checkpoint {directory} is damaged (arrays and meta disagree: {differ});'
      ' use an older one.'
    )
  return about, leaves


def _iso(seconds: float) -> str:
  moment = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
  return moment.isoformat(timespec='seconds')


def _bytes_on_disk(directory: str) -> int:
  found = 0
  for folder, _, names in os.walk(directory):
    for name in names:
      with contextlib.suppress(FileNotFoundError):  # It is being removed.
        found += os.lstat(os.path.join(folder, name)).st_size
  return found
