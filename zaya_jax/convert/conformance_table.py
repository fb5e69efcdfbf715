# SPDX-License-Identifier: Apache-2.0
"""What a comparison with the conformance kit found: rows and a table."""

import dataclasses
import sys
from typing import Any

import rich.console
import rich.table


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
  """One tensor of the kit.

  Attributes:
    name: as in the manifest.
    error: largest difference as a share of the spread of the expected values
      (of integers, the share that differs); None: not given, or no numbers.
    tolerance: what it may be, by the coarsest type up to here.
    verdict: 'agrees', 'differs' or 'not checked'.
    note: what else is to be said, such as a wrong shape.
  """

  name: str
  error: float | None = None
  tolerance: float = 0.0
  verdict: str = 'not checked'
  note: str = ''


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
  """What a comparison found.

  Attributes:
    rows: every tensor of the kit, in the order of the forward pass.
    unknown: names that the kit does not have.
    hint: the likely cause of the first difference; '' if there is none.
  """

  rows: tuple[Row, ...]
  unknown: tuple[str, ...]
  hint: str

  @property
  def agrees(self) -> bool:
    """Whether nothing that was given differs."""
    return self.first is None

  @property
  def first(self) -> Row | None:
    """The first tensor that differs."""
    return next((row for row in self.rows if row.verdict == 'differs'), None)

  def names(self, verdict: str) -> list[str]:
    """The tensors with this verdict."""
    return [row.name for row in self.rows if row.verdict == verdict]

  def summary(self) -> dict[str, Any]:
    """What the command prints as one JSON object."""
    return {
      'agrees': self.agrees,
      'first': self.first and dataclasses.asdict(self.first),
      'hint': self.hint,
      'agreeing': len(self.names('agrees')),
      'differing': self.names('differs'),
      'not_checked': self.names('not checked'),
      'unknown': list(self.unknown),
    }

  def print(self, stream: Any = None) -> None:
    """Writes the table and the first difference to `stream`, or stderr."""
    console = rich.console.Console(
      file=stream or sys.stderr, highlight=False, markup=False, emoji=False
    )
    if not console.is_terminal:
      console.width = 120  # A file has no width; rich takes 80.
    table = rich.table.Table(box=None, pad_edge=False)
    for title in ('submodule', 'difference', 'tolerance', 'verdict', ''):
      table.add_column(title, justify='right' if 'e' in title[2:4] else 'left')
    styles = {'agrees': 'green', 'differs': 'bold red', 'not checked': 'dim'}
    for row in self.rows:
      numbers = ('', '')
      if row.verdict != 'not checked':
        error = '-' if row.error is None else f'{row.error:.1e}'
        numbers = (error, f'{row.tolerance:.0e}')
      style = styles[row.verdict]
      table.add_row(row.name, *numbers, row.verdict, row.note, style=style)
    console.print(table)
    if self.unknown:
      console.print('unknown names:', ', '.join(self.unknown))
    if self.agrees:
      count = len(self.names('agrees'))
      console.print(f'{count} of {len(self.rows)} agree, none differs.')
    else:
      console.print(f'first difference: {self.first.name}\n{self.hint}')
