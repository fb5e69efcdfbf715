# SPDX-License-Identifier: Apache-2.0
"""Tokens by phase and source, from ledger.jsonl as it stands, unproven.

What is there to be proven, --mode=ledger proves.
"""

import json
import os
from collections.abc import Iterator
from typing import Any

from zaya_jax.metrics import text

NAME = 'ledger.jsonl'
COLUMNS = (
  'phase', 'source', 'tokens', 'share', 'epochs', 'rows', 'refused', 'left_out',
)  # fmt: skip


def totals(run_dir: str) -> list[dict[str, Any]]:
  """A row for each phase and each source that it read.

  Returns:
    COLUMNS: tokens, places for them in rows that were trained on; share of the
    tokens of the phase; epochs, of the source in the run until the phase ended;
    rows that were trained on, refused and left out. Nothing, if there is no
    ledger or it cannot be read.
  """
  found: dict[tuple[str, int], dict[str, int]] = {}
  opened: dict[str, Any] = {}
  try:
    last = [line for line in _lines(run_dir) if 'ledger' in line][-1:]
    for line in _lines(run_dir):
      if 'ledger' in line:
        opened = line
        continue
      first = line['rows'][0]
      seq_len = _stretch(opened, first)['seq_len']
      # Of a plain run, the phase of the recipe that it has grown into.
      phase = line['phase'] or _stretch(last[0], first).get('phase', '')
      for source, rows in enumerate(line['sources']):
        row = found.setdefault((phase, source), {'tokens': 0, 'read': 0})
        row['read'] += rows * seq_len
        row[line['outcome']] = row.get(line['outcome'], 0) + rows
        row['tokens'] += rows * seq_len * (line['outcome'] == 'trained')
    return list(_rows(found, opened))
  except (OSError, ValueError, LookupError, TypeError, AttributeError):
    return []


def lines(run_dir: str) -> list[str]:
  """The same in words: a line for each phase."""
  phases: dict[str, list[str]] = {}
  for row in totals(run_dir):
    if row['tokens']:
      part = f'{row["source"]} {text.short(row["tokens"])} tokens'
      part += f' ({row["epochs"]:.2f} epochs)'
      phases.setdefault(row['phase'], []).append(part)
  return [
    f'{phase}: {", ".join(parts)}' if phase else ', '.join(parts)
    for phase, parts in phases.items()
  ]


def _lines(run_dir: str) -> Iterator[dict[str, Any]]:
  with open(os.path.join(run_dir, NAME), 'rb') as file:
    for line in file:
      if line.endswith(b'\n'):  # Or it is being written.
        yield json.loads(line)


def _stretch(opened: dict[str, Any], row: int) -> dict[str, Any]:
  """What a line that opens says of a row."""
  for stretch in opened['stretches']:
    if stretch['rows'] is None or row < stretch['rows']:
      break
    row -= stretch['rows']
  return stretch


def _rows(found, opened) -> Iterator[dict[str, Any]]:
  phases = {}
  for (phase, _), row in found.items():
    phases[phase] = phases.get(phase, 0) + row['tokens']
  read: dict[int, int] = {}
  for (phase, source), row in found.items():
    about = opened['sources'][source]
    rows = {x: row.get(x, 0) for x in ('trained', 'refused', 'left_out')}
    read[source] = read.get(source, 0) + row['read']
    if any(rows.values()):
      yield {
        'phase': phase,
        'source': about['name'],
        'tokens': row['tokens'],
        'share': round(row['tokens'] / max(1, phases[phase]), 4),
        'epochs': round(read[source] / about['tokens'], 4),
        'rows': rows['trained'],
        'refused': rows['refused'],
        'left_out': rows['left_out'],
      }
