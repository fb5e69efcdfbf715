# SPDX-License-Identifier: Apache-2.0
"""What is read of a drill afterwards."""

import json

from zaya_jax.aegis.drills import table, trial


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
