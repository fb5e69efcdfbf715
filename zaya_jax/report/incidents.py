# SPDX-License-Identifier: Apache-2.0
"""What went wrong in a run, from incidents.jsonl and from the metrics."""

import itertools
from typing import Any

from zaya_jax.report import records

_NEWEST = 500  # Of incidents.jsonl.
# What an entry may call its parts; what was done may have parts of its own.
_NAMES = {
  'time': ('time',),
  'kind': ('kind',),
  'seen': ('seen',),
  'done': ('done', 'done.kind'),
  'reason': ('reason', 'done.reason'),
}
# What a supervisor notes of a run in which all is well.
_ORDINARY = ('supervise', 'running', 'sealed', 'node_ready', 'done')


def of_run(run: records.Run) -> list[dict[str, Any]]:
  """Incidents by step.

  Returns:
    Objects with step (None: not known), time, kind, seen and done.
  """
  told = [row for row in run.incidents if row.get('kind') not in _ORDINARY]
  found = [_entry(row) for row in told[-_NEWEST:]]
  for old, new, more in _changes(run, 'optim/skipped'):
    if more > 0:
      seen = (
        f'{more:.0f} since step {old["step"]:.0f}, with NaN, Inf or a spike'
      )
      time = _time(new.get('time/unix_s'))
      found.append(
        _new(new['step'], time, 'skipped steps', seen, 'not applied')
      )
  found += [one for one in _starts(run) if one['kind'] == 'restart']
  return sorted(found, key=lambda entry: entry['step'] or 0)


def continuations(run: records.Run) -> list[dict[str, Any]]:
  """Where a finished run was given more steps, in the form of incidents."""
  return [one for one in _starts(run) if one['kind'] == 'continued']


def _starts(run):
  """Each process after the first, at the step at which it resumed.

  The clock of a process starts at zero. Rows beyond the checkpoint have been
  dropped, so the last row before is of its step.
  """
  for old, new, more_s in _changes(run, 'time/elapsed_s'):
    if more_s < 0:
      step, time = old['step'], _time(records.began(new))
      said = 'restart', 'the process ended'
      if step in run.ends:
        said = 'continued', 'more steps were asked for'
      yield _new(step, time, *said, f'resumed at step {step:.0f}')


def _changes(run, key):
  """Each two neighbours of the rows with a number, and its change."""
  rows = [row for row in run.rows if records.number(row.get(key)) is not None]
  for old, new in itertools.pairwise(rows):
    yield old, new, new[key] - old[key]


def _new(step, time, kind, seen, done):
  return {'step': step, 'time': time, 'kind': kind, 'seen': seen, 'done': done}


def _time(value: Any) -> str:
  seconds = records.number(value)
  return '' if seconds is None else records.when(seconds)


def _entry(row: dict[str, Any]) -> dict[str, Any]:
  """One object of incidents.jsonl."""
  flat = dict(row)
  for key, value in row.items():
    if isinstance(value, dict):
      flat |= {f'{key}.{name}': x for name, x in value.items()}
  parts = {
    part: next((flat[n] for n in names if _is_said(flat.get(n))), '')
    for part, names in _NAMES.items()
  }
  reason = parts.pop('reason')
  parts['time'] = _time(parts['time']) or parts['time']
  step = records.number(flat.get('step'))
  done = f'{parts["done"]}: {reason}' if reason else parts['done']
  return {'step': step, **parts, 'done': done}


def _is_said(value: Any) -> bool:
  if isinstance(value, str):
    return bool(value)
  return records.number(value) is not None
