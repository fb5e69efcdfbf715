# SPDX-License-Identifier: Apache-2.0
"""What counts as an incident, and what a run is expected to go through."""

import pytest

from tests.support import run_files
from zaya_jax import config as config_lib
from zaya_jax.aegis.decide import events, state
from zaya_jax.aegis.supervisor import incidents as aegis_incidents
from zaya_jax.metrics import summary
from zaya_jax.report import incidents, records


def _run(tmp_path, rows, *entries):
  run_files.lines(tmp_path / 'metrics.jsonl', rows)
  run_files.lines(tmp_path / 'incidents.jsonl', entries)
  return records.read(str(tmp_path))


def test_restarts_and_skipped_steps_are_incidents(tmp_path):
  row = lambda step, clock, skipped: {
    'step': step,
    'time/elapsed_s': clock,
    'optim/skipped': skipped,
  }
  run = _run(
    tmp_path, [row(10, 50, 0), row(20, 60, 3), row(30, 20, 3), row(40, 30, 4)]
  )
  found = incidents.of_run(run)
  assert [(x['step'], x['kind']) for x in found] == [
    (20, 'skipped steps'),
    (20, 'restart'),
    (40, 'skipped steps'),
  ]
  assert '3 since step 10' in found[0]['seen']
  assert found[1]['done'] == 'resumed at step 20'
  assert incidents.continuations(run) == []


def _two_processes(tmp_path, log):
  """550 steps, then 1,400; the second process writes its first row at 575."""
  row = lambda step, clock: {
    'step': step,
    'time/elapsed_s': clock,
    'time/unix_s': 1e9 + step + clock,
  }
  (tmp_path / 'log.txt').write_text(log)
  return _run(tmp_path, [row(525, 90.0), row(550, 99.0), row(575, 20.0)])


def _closing(step, num_steps):
  """The last lines of a process."""
  config = config_lib.Config(num_steps=num_steps)
  return '\n'.join(
    summary.closing(
      config, run_dir='r', step=step, tokens=0, best=None, checkpoint=None
    )
  )


def test_more_steps_for_a_finished_run_are_no_incident(tmp_path):
  run = _two_processes(tmp_path, f'step 1\n{_closing(550, 550)}\nstep 575\n')
  assert incidents.of_run(run) == []
  (found,) = incidents.continuations(run)
  # When the second process began, at the step at which it resumed.
  assert (found['step'], found['kind']) == (550, 'continued')
  assert found['time'] == '2001-09-09 01:56 UTC'


@pytest.mark.parametrize(
  'log',
  ['', _closing(550, 600), _closing(500, 500), f'  | {_closing(550, 550)}'],
  # A closing line has the time, so as a name it would differ between workers.
  ids=['none', 'stopped', 'done before', 'in a sample'],
)
def test_run_that_was_not_done_was_restarted(tmp_path, log):
  run = _two_processes(tmp_path, log)
  (found,) = incidents.of_run(run)
  assert (found['step'], found['kind']) == (550, 'restart')
  assert incidents.continuations(run) == []


@pytest.mark.parametrize(
  'entry',
  [
    {'time': 0, 'kind': 'hang', 'step': 5, 'seen': 'stuck', 'done': 'restart'},
    aegis_incidents.to_row(
      events.Event(time_s=0, kind='hang', step=5, detail='stuck'),
      events.Action(kind='restart'),
    ),
  ],
)
def test_incidents_flat_or_nested(tmp_path, entry):
  (found,) = incidents.of_run(_run(tmp_path, [], entry))
  assert found == {
    'step': 5,
    'time': '1970-01-01 00:00 UTC',
    'kind': 'hang',
    'seen': 'stuck',
    'done': 'restart',
  }


def test_incidents_are_what_is_not_ordinary(tmp_path):
  _run(tmp_path, [])
  log = aegis_incidents.Incidents(
    tmp_path / 'incidents.jsonl', state.start(('a',)), time_s=0.0
  )
  for kind in ('running', 'sealed', 'hang'):
    log.decide(events.Event(time_s=0.0, kind=kind, step=5))
  log.close()
  (found,) = incidents.of_run(records.read(str(tmp_path)))
  assert found['kind'] == 'hang' and found['done'].startswith('restart: no ')


def test_newest_incidents_are_shown(tmp_path, monkeypatch):
  monkeypatch.setattr(incidents, '_NEWEST', 2)
  rows = [{'time': step, 'kind': 'hang', 'step': step} for step in (1, 2, 3)]
  found = incidents.of_run(_run(tmp_path, [], *rows))
  assert [one['step'] for one in found] == [2, 3]


def test_what_is_no_incident_is_left_out(tmp_path):
  rows = [{'time': 0, 'kind': kind} for kind in ('supervise', 'sealed', 'done')]
  assert incidents.of_run(_run(tmp_path, [], *rows)) == []


def test_incident_of_odd_types_is_shown_without_them(tmp_path):
  (found,) = incidents.of_run(
    _run(tmp_path, [], {'time': 1e300, 'step': 'x', 'kind': ['a'], 'seen': {}})
  )
  assert (found['step'], found['kind'], found['seen']) == (None, '', '')
