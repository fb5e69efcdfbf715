# SPDX-License-Identifier: Apache-2.0
"""Drills: how faults are written and measured, and a few real runs."""

import json

import pytest

from zaya_jax import config as config_lib
from zaya_jax.aegis.drills import mode, table, trial
from zaya_jax.runtime import faults


@pytest.fixture
def enter(tmp_path, monkeypatch):
  """Makes the hook of a rank whose faults only write their name."""
  happened = []
  for kind in faults.KINDS:
    monkeypatch.setitem(
      faults.KINDS, kind, lambda kind=kind: happened.append(kind)
    )

  def make(text, rank=1, generation=1):
    hook = faults.parse(text, rank, generation, tmp_path / 'log')
    return hook, happened

  return make


def test_a_fault_happens_once_at_its_step(enter, tmp_path):
  hook, happened = enter('kill@step:3:1:1,raise@save:*:1:*')
  for phase, step in [('data', 3), ('step', 2), ('step', 3), ('step', 3)]:
    hook(phase, step)
  assert happened == ['kill']
  hook('save', 7)
  assert happened == ['kill', 'raise']
  rows = (tmp_path / 'log').read_text().splitlines()
  assert [json.loads(row)['step'] for row in rows] == [3, 7]


@pytest.mark.parametrize('rank, generation', [(0, 1), (1, 2)])
def test_others_have_none(enter, rank, generation):
  hook, happened = enter('kill@step:3:1:1', rank, generation)
  hook('step', 3)
  assert happened == []


@pytest.mark.parametrize('drill', table.DRILLS.values())
def test_every_fault_is_known(drill):
  for entry in filter(None, drill.faults.split(',')):
    kind, _, where = entry.partition('@')
    assert kind in faults.KINDS
    assert len(where.split(':')) == 4


def test_an_unknown_drill_is_refused_by_name():
  with pytest.raises(config_lib.UsageError, match='--drill=coffee is not one'):
    list(mode.run(('coffee',)))


def test_times_are_the_worst_of_all_faults(tmp_path):
  run = trial.Trial(tmp_path, 'run', table.DRILLS['kill_rank'])
  (run.run_dir / 'aegis').mkdir(parents=True)
  rows = [
    {'time': 1.0, 'kind': 'running', 'step': 1},
    {'time': 2.0, 'kind': 'sealed', 'step': 10},
    {'time': 3.2, 'kind': 'exit', 'step': 13, 'done': {'kind': 'restart'}},
    {'time': 6.0, 'kind': 'running', 'step': 11},
    {'time': 7.5, 'kind': 'hang', 'step': 14, 'done': {'kind': 'restart'}},
    {'time': 9.0, 'kind': 'running', 'step': 11},
  ]
  _write(run.run_dir / 'incidents.jsonl', rows)
  injected = [{'time': 3.0, 'fault': 'kill'}, {'time': 7.0, 'fault': 'freeze'}]
  _write(run.run_dir / 'aegis' / 'faults.jsonl', injected)
  assert run.times() == {'detect_s': 0.5, 'recover_s': 3.0, 'steps_redone': 7}


def _write(path, rows):
  path.write_text(''.join(json.dumps(row) + '\n' for row in rows))


@pytest.mark.long
def test_real_runs_come_to_the_same_bits():
  names = """kill_rank kill_coordinator segv_rank abort_rank raise_rank
    freeze_rank nan_step kill_in_save zombie_save ecc_line ecc_printed sigterm
    double_sigterm two_supervisors""".split()
  for row in mode.run(tuple(names)):
    assert row['passed'], row
    if table.DRILLS[row['fault']].equal:
      assert row['bit_equal']
      assert not row['samples_lost'] + row['samples_repeated']
