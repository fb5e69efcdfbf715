# SPDX-License-Identifier: Apache-2.0
"""Checks as a table, and the verdict in one line."""

import sys
from collections.abc import Sequence

import rich.box
import rich.console
import rich.table

from zaya_jax.preflight import judge

_COLUMNS = ('check', 'outcome', 'found', 'wanted', 'what to do')
_STYLES = {'fault': 'red', 'warning': 'yellow', 'not checked': 'dim'}
_WIDTH = 160  # Columns in a pipe or a file; a terminal has its own.


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
