# SPDX-License-Identifier: Apache-2.0
"""incidents.jsonl: each event and its action, on disk before the action.

The first line of each supervisor has its initial state, from which `decide`
gives the same actions again.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from pipelines import typed_json
from zaya_jax.aegis.decide import decide as decide_lib
from zaya_jax.aegis.decide import events
from zaya_jax.aegis.decide import state as state_lib
from zaya_jax.config import fields

Event = events.Event
Action = events.Action
State = state_lib.State

# What training itself writes to the file.
_TOLD = (
  'refused_step',
  'loss_spike',
  'wrong_result',
  'corrupt_replica',
  'save_failed',
)


class Incidents:
  """Decides, and appends events and actions to the file."""

  def __init__(self, path: pathlib.Path, state: State, *, time_s: float):
    self.state = state  # After the last event.
    self.failure = ''  # Why the last line could not be written.
    self._file = path.open('ab', buffering=0)
    self._is_torn = self._file.tell() > 0  # The last line may have no end.
    self._write(
      {'time': time_s, 'kind': 'supervise', 'state': dataclasses.asdict(state)}
    )

  def decide(self, event: Event) -> Action:
    """Decides; returns when the line is on the disk.

    Events that change nothing are not written, so that noise fills no disk, nor
    are those that training has written itself.
    """
    state, action = decide_lib.decide(self.state, event)
    is_told = event.source == 'rank' and action.kind == 'warn'
    if state != self.state or not (is_told or action.kind == 'ignore'):
      self._write(to_row(event, action))
    self.state = state
    return action

  def close(self) -> None:
    """Closes the file."""
    self._file.close()

  def _write(self, row: dict[str, Any]) -> None:
    """Writes a line; an error is only told, as the run matters more."""
    line = (json.dumps(row) + '\n').encode()
    try:
      written = self._file.write(b'\n' + line if self._is_torn else line)
      self._is_torn = written < len(line)
      os.fsync(self._file.fileno())
      self.failure = ''
    except OSError as error:
      self._is_torn = True
      self.failure = f'{self._file.name} cannot be written: {error.strerror}'
      print(
        f'aegis: an incident was not recorded in {self._file.name}: {error}',
        file=sys.stderr,
      )


def to_row(event: Event, action: Action) -> dict[str, Any]:
  """A line of the file; fields that have their default are left out."""
  row = typed_json.plain(event)
  return {
    'time': row.pop('time_s'),
    'kind': row.pop('kind'),
    'step': row.pop('step', None),
    'seen': row.pop('detail', ''),
    **row,
    'done': typed_json.plain(action),
  }


def read(
  path: pathlib.Path,
) -> Iterator[tuple[int, State | tuple[Event, Action]]]:
  """Yields each line's number, with its state or its event and action.

  Torn lines and those of other programs are left out.

  Raises:
    UsageError: if a line of a supervisor has fields unknown to this version.
  """
  for number, row in _rows(path):
    try:
      if entry := _entry(row):
        yield number, entry
    except (LookupError, TypeError, ValueError) as error:
      raise fields.UsageError(
        f'line {number} of {path} is not of this version ({error}); move the '
        'file away.'
      ) from error


def told(
  line: str,
  nodes: Sequence[str],
  each: int,
  generation: int | None = None,
) -> Event | None:
  """The event of a line that training wrote; None for other lines.

  Args:
    line: of the file.
    nodes: of the generation.
    each: ranks on a node.
    generation: its number, if lines of others do not count.
  """
  with contextlib.suppress(LookupError, TypeError, ValueError, RecursionError):
    row = json.loads(line)
    if (
      row['kind'] in _TOLD and row['source'] == 'trainer' and 'done' not in row
    ):
      if generation not in (None, row.get('generation', generation)):
        return None
      facts = {
        'time_s': float(row['time']),
        'kind': row['kind'],
        'rank': row.get('rank'),
        'step': row['step'],
        'detail': str(row['seen']),
        'source': 'rank',
        'good_step': row.get('good_step'),
      }
      event = typed_json.build(Event, facts)
      if event.rank is None:
        return event
      node = dict(enumerate(nodes))[event.rank // each]
      return dataclasses.replace(event, node=node)
  return None


def last_state(path: pathlib.Path) -> State | None:
  """The state after the last line; None if no supervisor has written one.

  Lines that mean nothing to this version are told and left out: one of them
  keeps no run from going on.
  """
  state, odd = None, []
  for number, row in _rows(path) if path.exists() else ():
    try:
      entry = _entry(row)
      if isinstance(entry, State):
        state = entry
      elif entry and state is not None:
        state, _ = decide_lib.decide(state, entry[0])
    except (LookupError, TypeError, ValueError, AttributeError):
      odd.append(number)
  if odd:
    print(
      f'aegis: {len(odd)} lines of {path} are of another version and were left '
      f'out, the first is line {odd[0]}',
      file=sys.stderr,
    )
  return state


def _rows(path: pathlib.Path) -> Iterator[tuple[int, Any]]:
  """What is JSON, with the numbers of the lines."""
  with path.open('rb') as file:
    for number, line in enumerate(file, start=1):
      try:
        yield number, json.loads(line)
      except (ValueError, RecursionError):
        continue


def _entry(row: Any) -> State | tuple[Event, Action] | None:
  if isinstance(row, dict) and 'state' in row:
    if not isinstance(row['state'], dict):
      raise TypeError('its state')
    return typed_json.build(State, _with_ends(row['state'], row['time']))
  if isinstance(row, dict) and 'done' in row:
    return _from_row(row)
  return None


def _with_ends(state: dict[str, Any], time_s: float) -> dict[str, Any]:
  """Older supervisors wrote names of nodes in quarantine, without an end."""
  until_s = time_s + state_lib.Policy.quarantine_s
  held = [
    {'node': x, 'reason': '', 'since_s': time_s, 'until_s': until_s}
    if isinstance(x, str)
    else x
    for x in state.get('quarantine', ())
  ]
  return {**state, 'quarantine': held}


def _from_row(row: dict[str, Any]) -> tuple[Event, Action]:
  row['time_s'], row['detail'] = row.pop('time'), row.pop('seen')
  action = typed_json.build(Action, row.pop('done'))
  return typed_json.build(Event, row), action
