# SPDX-License-Identifier: Apache-2.0
"""What went wrong in a run, from incidents.jsonl and from the metrics."""

import itertools
from typing import Any

from zaya_jax.report import records

_NEWEST = 500  # Of incidents.jsonl.
# What a supervisor notes of a run in which all is well.
_ORDINARY = ('supervise', 'running', 'sealed', 'returned', 'done')


def of_run(run: records.Run) -> list[dict[str, Any]]:
  """Incidents by step.

  Returns:
    Objects with step (None: not known), time, kind, seen and done.
  """
  told = [row for row in run.incidents if row.get('kind') not in _ORDINARY]
  found = [_told(row) for row in told[-_NEWEST:]]
  for old, new, more in _changes(run, 'optim/skipped'):
    if more > 0:
      seen = f'{more:.0f} since step {old["step"]:.0f}: NaN, Inf or a spike'
      time = _time(new.get('time/unix_s'))
      found.append(_entry(new['step'], time, 'skipped steps', seen, 'refused'))
  found += [one for one in _starts(run) if one['kind'] == 'restart']
  return sorted(found, key=lambda entry: entry['step'] or 0)


def continuations(run: records.Run) -> list[dict[str, Any]]:
  """Where a finished run was given more steps, in the form of incidents."""
  return [one for one in _starts(run) if one['kind'] == 'continued']


def phases(run: records.Run) -> list[dict[str, Any]]:
  """Where each phase of a recipe but the first began, likewise."""
  rows = [row for row in run.rows if isinstance(row.get('phase'), str)]
  return [
    _entry(
      old['step'], _time(new.get('time/unix_s')), 'phase', new['phase'], ''
    )
    for old, new in itertools.pairwise(rows)
    if old['phase'] != new['phase']
  ]


def _starts(run):
  """Each process after the first, at the step at which it resumed.

  The clock of a process starts at zero. Rows beyond the checkpoint have been
  dropped, so the last row before is of its step.
  """
  for old, new, more_s in _changes(run, 'time/elapsed_s'):
    if more_s < 0:
      step, said = old['step'], ('restart', 'the process ended')
      if step in run.ends:
        said = ('continued', 'more steps were asked for')
      time = _time(records.began(new))
      yield _entry(step, time, *said, f'resumed at step {step:.0f}')


def _changes(run, key):
  """Each two neighbours of the rows with a number, and its change."""
  for (old, before), (new, now) in itertools.pairwise(run.numbers(key)):
    yield old, new, now - before


def _told(row: dict[str, Any]) -> dict[str, Any]:
  """One object of incidents.jsonl; what was done may have parts of its own."""
  parts = row.get('done')
  if not isinstance(parts, dict):
    parts = {'kind': parts, 'reason': row.get('reason')}
  done, reason = _text(parts.get('kind')), _text(parts.get('reason'))
  return _entry(
    records.number(row.get('step')),
    _time(row.get('time')) or _text(row.get('time')),
    _text(row.get('kind')),
    _text(row.get('seen')),
    f'{done}: {reason}' if reason else done,
  )


def _entry(step, time, kind, seen, done) -> dict[str, Any]:
  return {'step': step, 'time': time, 'kind': kind, 'seen': seen, 'done': done}


def _text(value: Any) -> str:
  """Texts and numbers; '' for anything else."""
  known = isinstance(value, str) or records.number(value) is not None
  return str(value) if known else ''


def _time(value: Any) -> str:
  seconds = records.number(value)
  return '' if seconds is None else records.when(seconds)
