# SPDX-License-Identifier: Apache-2.0
"""What --plan.search and --plan.parameters have found: a table, or JSON."""

import json
from typing import Any

from zaya_jax.metrics import text
from zaya_jax.plan.show import tables


def show_search(found: dict[str, Any], as_json: bool) -> None:
  """Prints the result of `search.find`, the fastest first."""
  if as_json:
    _print_rows(found)
    return
  rows = [
    [
      str(n),
      tables.seconds(row['step']),
      f'{tables.seconds(row["range"][0])} to {tables.seconds(row["range"][1])}',
      text.short(row['tokens_per_second']),
      tables.nbytes(row['memory']),
      _compiled(row),
    ]
    for n, row in enumerate(found['rows'], 1)
  ]
  title = f'{found["fit"]} of {found["tried"]} ways fit; the fastest'
  columns = ('', 'step', 'best to worst', 'tokens/s', 'memory', 'compiled')
  tables.print_all([(title, columns, rows)])
  _print_flags(found)
  if not any('compiled' in row for row in found['rows']):
    print(found['hint'])


def show_sizes(found: dict[str, Any], as_json: bool) -> None:
  """Prints the result of `sizes.find`, what trains fastest first."""
  if as_json:
    _print_rows(found)
    return
  rows = [
    [
      str(n),
      text.short(row['tokens_per_second']),
      f'{row["mfu"]:.1%}',
      f'{row["decode_ms"]:.3g} ms',
      text.short(row['parameters']),
      text.short(row['active']),
      tables.nbytes(row['memory']),
    ]
    for n, row in enumerate(found['rows'], 1)
  ]
  title = f'the best of {found["fit"]} shapes that fit, of {found["tried"]}'
  columns = (
    '', 'tokens/s/device', 'MFU', 'decode', 'parameters', 'active', 'memory',
  )  # fmt: skip
  tables.print_all([(title, columns, rows)])
  _print_flags(found)
  print(
    f'No other with {text.short(found["active"])} active parameters or more '
    'both trains and decodes faster.'
  )
  grid = '; '.join(
    f'{name} {", ".join(map(str, values))}'
    for name, values in found['grid'].items()
  )
  print(f'tried: {grid}')


def _print_flags(found) -> None:
  for n, row in enumerate(found['rows'], 1):
    print(f'{n}  {row["flags"]}')


def _print_rows(found) -> None:
  for row in found['rows']:
    print(json.dumps(row))


def _compiled(row) -> str:
  """What the compiler says of the memory of a way."""
  known = row.get('compiled')
  if known is None:
    return ''
  if isinstance(known, str):
    return known
  return tables.nbytes(known['arguments'] + known['temporary'])
