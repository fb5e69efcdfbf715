# SPDX-License-Identifier: Apache-2.0
"""Checks as a table, the verdict in one line, and both as JSON."""

import dataclasses
import json
import sys
import time
from collections.abc import Sequence
from typing import Any

import rich.box
import rich.console
import rich.table

from zaya_jax.config import exit_codes
from zaya_jax.preflight import judge
from zaya_jax.runtime import durable

_COLUMNS = ('check', 'outcome', 'found', 'wanted', 'what to do')
_STYLES = {'fault': 'red', 'warning': 'yellow', 'not checked': 'dim'}
_WIDTH = 160  # Columns in a pipe or a file; a terminal has its own.


def conclude(
  output: str,
  name: str,
  checks: Sequence[judge.Check],
  start: float,
  **more: Any,
) -> int:
  """Prints the table and the verdict, which is the last line; writes JSON.

  Args:
    output: of --output; '': none is written.
    name: of the node.
    checks: of it.
    start: of the command, by the monotonic clock.
    **more: for the JSON.

  Returns:
    The exit code.
  """
  show(checks)
  is_fit = all(check.outcome != 'fault' for check in checks)
  if output:
    content = {
      'node': name,
      'fit': is_fit,
      'verdict': verdict(checks),
      'seconds': round(time.monotonic() - start, 1),
      'checks': [dataclasses.asdict(check) for check in checks],
      **more,
    }
    text = json.dumps(content, indent=1)
    durable.replace(output, f'{text}\n'.encode())
  print(f'{name} is {verdict(checks)}.', flush=True)
  return exit_codes.DONE if is_fit else exit_codes.UNUSABLE


def show(checks: Sequence[judge.Check]) -> None:
  """Prints the checks on stdout, faults first."""
  console = rich.console.Console(highlight=False, markup=False)
  if not console.is_terminal:
    console = rich.console.Console(
      highlight=False, markup=False, width=_WIDTH, file=sys.stdout
    )
  table = rich.table.Table(box=rich.box.SIMPLE_HEAD)
  for column in _COLUMNS:
    table.add_column(column, overflow='fold')
  order = ('fault', 'warning', 'not checked', 'fit')
  for c in sorted(checks, key=lambda check: order.index(check.outcome)):
    table.add_row(
      c.name,
      c.outcome,
      c.found,
      c.wanted,
      c.advice,
      style=_STYLES.get(c.outcome),
    )
  console.print(table)


def verdict(checks: Sequence[judge.Check]) -> str:
  """Fit or not, and why, short: a supervisor keeps the end of the output."""
  of = lambda outcome: [c for c in checks if c.outcome == outcome]
  counts = ', '.join(
    f'{len(of(outcome))} {outcome}'
    for outcome in ('fit', 'warning', 'not checked')
  )
  if faults := of('fault'):
    return 'not fit: ' + '; '.join(f'{c.name} {c.found}' for c in faults)
  return f'fit: {counts}'
