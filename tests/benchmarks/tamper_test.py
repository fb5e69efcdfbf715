# SPDX-License-Identifier: Apache-2.0
"""A sample of the random tampers and kills, and that silence would be told."""

import json
import logging
import subprocess
import sys

import pytest

from benchmarks import tamper, tamper_ledger, tamper_replays, tamper_shards
from pipelines.shards import manifest
from zaya_jax.checkpoint import seal
from zaya_jax.checkpoint.reading import resuming
from zaya_jax.data.ledger import content


@pytest.fixture(autouse=True)
def quiet():
  """Each refusal is a warning."""
  logging.disable(logging.WARNING)
  yield
  logging.disable(logging.NOTSET)


def test_no_random_tamper_is_accepted_in_silence(tmp_path):
  found = tamper.trials(str(tmp_path), 66, seed=1)
  assert found['silent'] == 0, found['silent_trials']
  assert sum(found['refused'].values()) == 66
  assert {'hash', 'size', 'missing', 'extra', 'key'} <= found['reasons'].keys()


def test_no_random_edit_of_a_ledger_is_accepted_in_silence(tmp_path):
  found = tamper_ledger.trials(str(tmp_path), 40, seed=1)
  assert found['silent'] == 0, found['silent_trials']
  assert {'chain', 'shards'} <= found['by'].keys()


def test_edit_of_shards_that_nobody_looks_for_is_told(tmp_path, monkeypatch):
  places = lambda shards, line, **_: (
    line.seq_len * (line.rows[1] - line.rows[0])
  )
  monkeypatch.setattr(content, 'check', places)
  monkeypatch.setattr(manifest, 'verify', lambda d, **_: manifest.load(d))
  found = tamper_ledger.trials(str(tmp_path), 20, seed=1)
  assert 0 < found['silent'] < 20
  assert all(x.startswith('shards: ') for x in found['silent_trials'])


def test_tamper_that_nobody_looks_for_is_told(tmp_path, monkeypatch):
  verify = seal.verify

  def blind(directory, **options):
    return verify(directory, **{**options, 'contents': False})

  monkeypatch.setattr(seal, 'verify', blind)
  found = tamper.trials(str(tmp_path), 66, seed=1)
  assert 0 < found['silent'] < 66
  kinds = {text.partition(':')[0] for text in found['silent_trials']}
  assert kinds & {'bit flip', 'zeroed block', 'file of another checkpoint'}


def test_no_signed_checkpoint_but_the_newest_is_taken(tmp_path):
  found = tamper_replays.trials(str(tmp_path), 42, seed=1)
  assert found['silent'] == 0, found['silent_trials']
  assert sum(found['refused'].values()) > 30
  assert {'older', 'hash', 'fingerprint'} <= found['reasons'].keys()


@pytest.mark.long
def test_no_signed_checkpoint_but_the_newest_is_taken_in_1000_trials(tmp_path):
  found = tamper_replays.trials(str(tmp_path), 1000, seed=2)
  assert found['silent'] == 0, found['silent_trials']


def test_replay_that_nobody_looks_for_is_told(tmp_path, monkeypatch):
  monkeypatch.setattr(resuming, 'check', lambda *_: None)
  monkeypatch.setattr(seal, 'remember', lambda *_: None)
  found = tamper_replays.trials(str(tmp_path), 42, seed=1)
  assert 0 < found['silent'] < 42
  kinds = {text.rpartition(':')[0] for text in found['silent_trials']}
  assert {'newest removed', 'late: all of another'} <= kinds


@pytest.mark.long
def test_no_kill_leaves_a_half_that_is_chosen(tmp_path):
  done = subprocess.run(
    [
      *(sys.executable, '-m', 'benchmarks.kill_save', '--trials=15'),
      f'--output={tmp_path}/kills.json',
    ],
    capture_output=True,
    text=True,
    timeout=300,
    check=False,
  )
  assert done.returncode == 0, done.stderr
  found = json.loads((tmp_path / 'kills.json').read_text())
  assert (found['trials'], found['wrong']) == (15, 0), found


def test_no_random_tamper_of_shards_is_accepted(tmp_path):
  found = tamper_shards.trials(str(tmp_path), 60, seed=1)
  assert found['silent'] == 0, found['silent_trials']
  assert sum(found['refused'].values()) == 60


def test_tamper_of_shards_that_nobody_looks_for_is_told(tmp_path, monkeypatch):
  monkeypatch.setattr(
    manifest, 'verify', lambda d, **_: manifest.load(d)
  )  # Names and sizes.
  found = tamper_shards.trials(str(tmp_path), 60, seed=1)
  assert 0 < found['silent'] < 60
