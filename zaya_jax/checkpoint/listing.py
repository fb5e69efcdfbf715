# SPDX-License-Identifier: Apache-2.0
"""--mode=checkpoints: one JSON object per checkpoint, oldest first.

Every array is read, whole and on the host, so a listing needs neither the
devices of the run nor more memory than the largest array.
"""

import datetime
import json
import math
import os
import sys
from typing import Any

from zaya_jax import config as config_lib
from zaya_jax.checkpoint import arrays, errors, hashing, layout, reader

_METRICS = ('train/loss', 'val/loss', 'val/bpb')


def main(config: config_lib.Config) -> None:
  """Prints the checkpoints of --source or, without it, of --run_dir.

  Raises:
    CheckpointError: with exit code 2 if there is nothing to list.
  """
  source = config.source or config.run_dir
  if not source:
    raise errors.CheckpointError(
      '--mode=checkpoints needs --source=RUN_DIR.', errors.USAGE
    )
  for directory in _directories(source):
    print(json.dumps(entry(directory)), flush=True)


def entry(directory: str) -> dict[str, Any]:
  """What is known about one complete checkpoint.

  Returns:
    step, time, bytes, valid, and, as far as it can be read: tokens, data_index,
    train/loss, val/loss, val/bpb, params_hash, state_hash; reason if not valid.
  """
  found = {
    'step': int(os.path.basename(directory)),
    'time': _iso(layout.commit_time(directory)),
    'bytes': _bytes_on_disk(directory),
  }
  try:
    return {**found, **_content(directory), 'valid': True}
  except errors.CheckpointError as error:
    return {**found, 'valid': False, 'reason': str(error)}


def _directories(source: str) -> list[str]:
  """The complete checkpoints that `source` means; tells of the others."""
  newest = layout.resolve(source)
  if newest == os.path.abspath(source):
    return [newest]
  folder = os.path.dirname(newest)
  for name in layout.incomplete(folder):
    print(f'{os.path.join(folder, name)}: incomplete, ignored', file=sys.stderr)
  return [os.path.join(folder, str(step)) for step in layout.steps(folder)]


def _content(directory: str) -> dict[str, Any]:
  meta = reader.read_meta(directory)
  kinds = arrays.describe(reader.stored(directory))
  if found := arrays.differences(kinds, meta['arrays']):
    raise errors.CheckpointError(f'Arrays and meta disagree: {found}.')
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
    os.path.getsize(os.path.join(folder, name))
    for folder, _, names in os.walk(directory)
    for name in names
  )
