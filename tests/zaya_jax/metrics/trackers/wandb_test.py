# SPDX-License-Identifier: Apache-2.0
"""W&B itself, offline: what its file holds, under one name after a resume."""

import time

import pytest

from zaya_jax import config as config_lib

pytestmark = pytest.mark.long
wandb = pytest.importorskip('wandb')


def _history(folder):
  """Rows of the newest run in a folder, from its file: a log as LevelDB's."""
  from wandb.proto import wandb_internal_pb2

  path = max(folder.glob('offline-run-*/run-*.wandb'))
  data, at, found, whole = path.read_bytes(), 7, [], b''
  while at + 7 < len(data):
    if 32768 - at % 32768 < 7:  # No head fits into the rest of a block.
      at += 32768 - at % 32768
    size, kind = int.from_bytes(data[at + 4 : at + 6], 'little'), data[at + 6]
    whole += data[at + 7 : at + 7 + size]
    at += 7 + size
    if kind not in (1, 4):  # Neither whole nor the last part.
      continue
    record, whole = wandb_internal_pb2.Record.FromString(whole), b''
    if record.WhichOneof('record_type') == 'history':
      items = record.history.item
      found.append(
        {i.key or '/'.join(i.nested_key): i.value_json for i in items}
      )
  return path, found


def test_rows_of_a_run_are_in_the_file_of_wandb(tmp_path, monkeypatch):
  monkeypatch.setenv('WANDB_MODE', 'offline')
  from zaya_jax.metrics.trackers import names
  from zaya_jax.metrics.trackers import wandb as ours

  secret = config_lib.AegisConfig(notify='https://webhook')
  config = config_lib.Config(run_dir=str(tmp_path), aegis=secret)
  tracker = ours.Tracker(config)
  tracker.scalars({'train/loss': 2.5}, 1)
  tracker.scalars({'val/loss': 2.25}, 1)
  tracker.scalars({'train/loss': 1.5}, 4)
  tracker.close()
  path, rows = _history(tmp_path / 'wandb')
  end = time.monotonic() + 60
  while len(rows) < 2 and time.monotonic() < end:  # W&B's process writes late.
    time.sleep(0.2)
    path, rows = _history(tmp_path / 'wandb')
  assert [row.get('train/loss') for row in rows] == ['2.5', '1.5']
  assert rows[0]['val/loss'] == '2.25'
  assert [row['_step'] for row in rows] == ['1', '4']
  name = names.read(tmp_path, 'wandb')
  assert name and name in path.name
  assert b'webhook' not in path.read_bytes()
  again = ours.Tracker(config)
  assert again._run.id == name
  again.close()
