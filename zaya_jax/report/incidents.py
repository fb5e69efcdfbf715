# SPDX-License-Identifier: Apache-2.0
"""What went wrong in a run: of incidents.jsonl, and what the metrics tell."""

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
  found += _changes(run, 'time/elapsed_s', _restart)
  found += _changes(run, 'optim/skipped', _skipped)
  return sorted(found, key=lambda entry: entry['step'] or 0)


def _changes(run, key, make) -> list[dict[str, Any]]:
  """What `make` says of each two neighbours of a number."""
  rows = [row for row in run.rows if records.number(row.get(key)) is not None]
  found = []
  for old, new in zip(rows[:-1], rows[1:], strict=True):
    if said := make(old['step'], new[key] - old[key]):
      found.append({'step': new['step'], 'time': '', **said})
  return found


def _restart(step, more_s):
  """The clock of a process starts at zero."""
  if more_s >= 0:
    return None
  seen = f'the process ended after step {step:.0f}'
  return {'kind': 'restart', 'seen': seen, 'done': 'resumed from a checkpoint'}


def _skipped(step, count):
  if count <= 0:
    return None
  seen = f'{count:.0f} since step {step:.0f}, with NaN, Inf or a spike'
  return {'kind': 'skipped steps', 'seen': seen, 'done': 'not applied'}


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
  if (seconds := records.number(parts['time'])) is not None:
    parts['time'] = records.when(seconds)
  step = records.number(flat.get('step'))
  done = f'{parts["done"]}: {reason}' if reason else parts['done']
  return {'step': step, **parts, 'done': done}


def _is_said(value: Any) -> bool:
  if isinstance(value, str):
    return bool(value)
  return records.number(value) is not None
