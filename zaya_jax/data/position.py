# SPDX-License-Identifier: Apache-2.0
"""The position of a run in its data, and whether it means the same here.

A position is the next row. It says which windows were given out only together
with the order of the rows before it: a checkpoint holds how they were read, and
a hash of the last of them. What comes later may change, by a recipe; what was
read may not.
"""

import hashlib
import itertools
import json
from collections.abc import Sequence
from typing import Any

from pipelines import errors as data_errors
from pipelines import loader as loader_lib
from pipelines import order
from pipelines.shards import manifest
from zaya_jax import config as config_lib
from zaya_jax.checkpoint import errors
from zaya_jax.data import past

META = 'order'  # In the meta of checkpoints.

_ROWS = 64  # Whose places are hashed.
_DECIDE = ('--data.dir:', '--data.seq_len:', '--seed:')


def describe(loader: loader_lib.Loader) -> dict[str, Any]:
  """What a checkpoint holds, beside the next row: all of it JSON."""
  return {
    'version': order.VERSION,
    'past': _past(loader.order, loader.state),
    'read': _read(loader.order, loader.state),
    'sources': contents(loader.manifests),
  }


def contents(manifests: Sequence[manifest.Manifest]) -> list[str]:
  """A hash of the shards to train on, for each source."""
  return [
    hashlib.sha256(
      json.dumps([s.sha256 for s in data.splits['train'].shards]).encode()
    ).hexdigest()
    for data in manifests
  ]


def check(
  config: config_lib.Config,
  about: dict[str, Any],
  loader: loader_lib.Loader,
  *,
  changes: Sequence[str],
  versions: dict[str, str],
) -> None:
  """Refuses to go on where windows would be lost or repeated.

  Args:
    config: of the run.
    about: the meta of the checkpoint to go on from.
    loader: of the rows to come.
    changes: of flags since the checkpoint, as '--name: old -> new'.
    versions: of packages, now.

  Raises:
    UsageError: if flags have another order, or the checkpoint has one that is
      no longer read.
    DataError: with exit code 3, if there are other shards than were read.
    CheckpointError: with exit code 3, if the same settings make another order.
  """
  row, before = about['data_index'], about.get(META)
  if not row:
    return
  away = (
    'take the parameters into another --run_dir with '
    f'--restore={config.run_dir}'
  )
  if not before or before['version'] != order.VERSION:
    raise config_lib.UsageError(
      f'--run_dir={config.run_dir} was trained by a zaya_jax that reads the '
      f'text in another order: from here on {row:,} sequences would be lost or '
      f'repeated; go on with that version, or {away}.'
    )
  same = before['past'] == _past(loader.order, row)
  if 'read' in before:  # Older checkpoints have the hash alone.
    same = same and before['read'] == _read(loader.order, row)
  decide = [change for change in changes if change.startswith(_DECIDE)]
  if not same and decide:
    raise config_lib.UsageError(
      f'--run_dir={config.run_dir} has read {row:,} sequences in the order of '
      f'other settings ({", ".join(decide)}), and would repeat some and lose '
      f'others; put them back, say in a --recipe what changes when, or {away}.'
    )
  _check_contents(before['sources'], loader, row, away)
  if not same:
    old = about.get('versions', {})
    raise errors.CheckpointError(
      f'--run_dir={config.run_dir} was trained in another order of the text '
      f'than is made of the same settings now, with Grain {old.get("grain")} '
      f'and order {before["version"]}, and now Grain {versions["grain"]} and '
      f'order {order.VERSION}; use those versions again, or {away}.'
    )


def _past(rows: order.Order, row: int) -> str:
  first = max(0, row - _ROWS)
  return rows.fingerprint(first, row - first)


def _read(rows: order.Order, row: int) -> list[Any]:
  """How the rows before `row` were read: counts of rows, and of each source.

  The last of them do not show how often a rare source was read. Stretches that
  read alike are one: a phase may be cut where its batch grows.

  Returns:
    [rows of each source, [rows, tokens of each, {source: share}], ...]; sources
    that were not read are left out, so that new ones may be added.
  """
  found: list[Any] = [_some(rows.counts(0, row))]
  alike = itertools.groupby(
    past.before(rows.stretches, row), lambda s: (s.seq_len, s.weights)
  )
  for (seq_len, shares), group in alike:
    found.append([sum(s.rows or 0 for s in group), seq_len, _some(shares)])
  return found


def _some(values: Sequence[Any]) -> dict[str, str]:
  """What is not 0, by number, as JSON keeps it."""
  return {str(i): str(value) for i, value in enumerate(values) if value}


def _check_contents(before, loader, row, away) -> None:
  """Refuses other shards, of the sources that were read from."""
  now = contents(loader.manifests)
  read = loader.order.counts(0, row)
  for i, (old, new) in enumerate(zip(before, now, strict=False)):
    if read[i] and old != new:
      raise data_errors.DataError(
        f'The shards of {loader.directories[i]} are not those that the run '
        f'has read {read[i]:,} sequences from; put them back, or {away}.',
        data_errors.UNUSABLE,
      )
