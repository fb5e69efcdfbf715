# SPDX-License-Identifier: Apache-2.0
"""--mode=checkpoints: JSON lines about checkpoints, oldest first.

Nothing here needs the devices of the run: arrays are read on the host, one at a
time or part by part.
"""

import dataclasses
import datetime
import json
import math
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

from zaya_jax import config as config_lib
from zaya_jax.checkpoint import arrays, errors, folders, lock, seal
from zaya_jax.checkpoint.actions import compare, hashing, reshape
from zaya_jax.checkpoint.reading import finder, reader
from zaya_jax.checkpoint.writing import retention

_METRICS = ('train/loss', 'val/loss', 'val/bpb')
Lines = Iterator[dict[str, Any]]


def main(config: config_lib.Config) -> int:
  """Does `--checkpoint.action` with --source or, without it, --run_dir.

  Returns:
    The exit code: 3 if verify found a checkpoint that is not valid.

  Raises:
    CheckpointError: with exit code 2 if there is nothing to do it with.
  """
  source = config.source or config.run_dir
  if not source:
    raise errors.CheckpointError(
      '--mode=checkpoints needs --source=RUN_DIR.', errors.USAGE
    )
  code = 0
  for line in _ACTIONS[config.checkpoint.action](config, source):
    print(json.dumps(line), flush=True)
    if config.checkpoint.action == 'verify' and not line['valid']:
      code = errors.UNUSABLE
  return code


def entry(directory: str) -> dict[str, Any]:
  """What is known about one checkpoint.

  Returns:
    step, bytes, sealed, valid, and, as far as it can be read: time, tokens,
    data_index, train/loss, val/loss, val/bpb, params_hash, state_hash; reason
    if not valid.
  """
  sealed = os.path.exists(os.path.join(directory, seal.NAME))
  found = {
    'step': int(os.path.basename(directory).partition('-')[0]),
    'bytes': _bytes_on_disk(directory),
    'sealed': sealed,
  }
  try:
    body = finder.verify(directory)
    found['time'] = _iso(body['time'])
    return {**found, **_content(directory), 'valid': True}
  except errors.CheckpointError as error:
    return {**found, 'valid': False, 'reason': str(error)}


def _list(config: config_lib.Config, source: str) -> Lines:
  del config
  for directory in _directories(source):
    yield entry(directory)


def _verify(config: config_lib.Config, source: str) -> Lines:
  """Reads every file and every array: the seal, then the fingerprints."""
  del config
  for directory in _directories(source):
    started, found = time.monotonic(), {'checkpoint': directory}
    try:
      body = folders.check(directory)
      compare.check_fingerprints(directory, body.get('fingerprint', {}))
      sizes = [size for size, _ in body['files'].values()]
      found |= {'valid': True, 'files': len(sizes), 'bytes': sum(sizes)}
    except errors.CheckpointError as error:
      reason = getattr(error, 'reason', 'arrays')
      found |= {'valid': False, 'reason': reason, 'what': str(error)}
    yield {**found, 'seconds': round(time.monotonic() - started, 3)}


def _seal(config: config_lib.Config, source: str) -> Lines:
  """Seals what has no seal, once all of its arrays could be read."""
  del config
  for directory in _directories(source):
    run_dir = os.path.dirname(os.path.dirname(directory))
    if os.path.lexists(os.path.join(directory, seal.NAME)):
      continue
    with lock.RunLock(run_dir, '--source'):
      meta = _meta_of(directory)
      step = int(os.path.basename(directory).partition('-')[0])
      prints = compare.fingerprints(directory)
      body = seal.write(directory, folders.facts(step, meta, prints))
    yield {'checkpoint': directory, 'sealed': True, 'files': len(body['files'])}


def _prune(config: config_lib.Config, source: str) -> Lines:
  """Removes what a run with these settings would; by default with its own."""
  folder = folders.root(source)
  settings = config.checkpoint
  own = reader.read_meta(finder.resolve(source)).get('config', {})
  plain = config_lib.CheckpointConfig()
  if (settings.keep, settings.keep_every) == (plain.keep, plain.keep_every):
    theirs = own.get('checkpoint', {})
    settings = dataclasses.replace(
      settings,
      **{k: theirs[k] for k in ('keep', 'keep_every') if k in theirs},
    )
  with lock.RunLock(os.path.dirname(folder), '--source'):
    for step in retention.prune(folder, settings):
      yield {'step': step, 'removed': True}


def _directories(source: str) -> list[str]:
  """The checkpoints that `source` means, good or bad; tells of leftovers."""
  path = os.path.abspath(source)
  if folders.is_checkpoint(path):
    return [path]
  for folder in (folders.root(path), path):
    if names := folders.numbered(folder):
      for name in folders.incomplete(folder):
        if name not in names:
          left = os.path.join(folder, name)
          print(f'{left}: left by a killed save, ignored', file=sys.stderr)
      return [os.path.join(folder, name) for name in reversed(names)]
  raise errors.CheckpointError(
    f'{source} holds no complete checkpoint; name a run directory with '
    'checkpoints/STEP in it, or one such checkpoint.',
    errors.USAGE,
  )


def _meta_of(directory: str) -> dict[str, Any]:
  """The meta of a checkpoint whose arrays are those that it tells of."""
  meta = reader.read_meta(directory)
  kinds = arrays.describe(reader.stored(directory))
  if found := arrays.differences(kinds, meta['arrays']):
    raise errors.CheckpointError(f'Arrays and meta disagree: {found}.')
  return meta


def _content(directory: str) -> dict[str, Any]:
  meta = _meta_of(directory)
  hashes = {
    path: hashing.leaf_hash(path, array)
    for path, array in reader.leaves(directory)
  }
  metrics = meta.get('metrics', {})
  known = [k for k in _METRICS if math.isfinite(metrics.get(k, math.nan))]
  return {
    'tokens': meta.get('tokens'),
    'data_index': meta['data_index'],
    **{name: metrics[name] for name in known},
    'params_hash': hashing.combine_params(hashes),
    'state_hash': hashing.combine(hashes),
  }


def _iso(seconds: float) -> str:
  moment = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
  return moment.isoformat(timespec='seconds')


def _bytes_on_disk(directory: str) -> int:
  return sum(
    os.lstat(os.path.join(folder, name)).st_size
    for folder, _, names in os.walk(directory)
    for name in names
  )


_ACTIONS = {
  'list': _list,
  'verify': _verify,
  'seal': _seal,
  'diff': compare.main,
  'reshape': reshape.main,
  'prune': _prune,
}
