# SPDX-License-Identifier: Apache-2.0
"""Comparisons of kernels: which are faults, and which engine to take instead.

They are read from what the commands have printed, so that all stands that came
before a crash; the last line of progress says what crashed.
"""

import json
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any

from ops import registry
from zaya_jax.preflight.contact import child

Row = dict[str, Any]


def read(
  root: pathlib.Path, ended: Sequence[child.Ended], platform: str
) -> tuple[list[Row], list[str]]:
  """The rows of all operations, and what failed outside of a comparison.

  Args:
    root: folder of the first contact.
    ended: the commands.
    platform: of `dispatch.PLATFORMS`.
  """
  rows, crashes = [], []
  for one in ended:
    text = (root / f'logs/{one.name}.out').read_text(errors='replace')
    rows += [row for line in text.splitlines() if (row := _parsed(line))]
    if one.code in (0, 3, None):
      continue
    if begun := _begun(root / f'logs/{one.name}.err'):
      rows.append(_crashed(one, begun, platform))
    else:
      crashes.append(f'{one.name} {one.words}: {one.last}')
  return rows, crashes


def is_fault(row: Row) -> bool:
  """Whether a row says that training here would go wrong.

  An engine that only runs when it is named is none; neither is one that cannot
  compile a float32 that accelerators do not train in.
  """
  is_bad = row['outcome'] == 'wrong' or (
    row['outcome'] == 'failed' and row['dtype'] == 'bfloat16'
  )
  return bool(row['default'] and is_bad)


def sentence(row: Row) -> str:
  """A row in words."""
  what = f'{row["op"]} by {row["engine"]}'
  return f'{what} on {row["case"]} {row["dtype"]}: {row["said"]}'


def advice(key: tuple[str, str], rows: Iterable[Row]) -> str:
  """Which engine to take instead of one that is wrong.

  Args:
    key: operation and engine.
    rows: all comparisons.
  """
  op, engine = key
  rows = [row for row in rows if row['op'] == op]
  bad = {r['engine'] for r in rows if r['outcome'] in ('wrong', 'failed')}
  good = {row['engine'] for row in rows if row['outcome'] == 'right'} - bad
  order = [one.name for one in registry.operation(op).engines]
  other = next((name for name in order if name in good), '')
  if not other:
    return f'{op} has no engine that is right here: do not train on it.'
  return (
    f'Do not use {op} by {engine} here: --ops.{op}={other} takes another; '
    f'--mode=bench --bench.check --bench.op={op} compares again.'
  )


def _parsed(line: str) -> Row | None:
  if not line.startswith('{'):
    return None
  try:
    return json.loads(line)
  except ValueError:  # It was cut off.
    return None


def _begun(path: pathlib.Path) -> list[str]:
  """Operation, engine, case and type of the comparison that began last."""
  lines = path.read_text(errors='replace').splitlines()
  begun = [x.split()[1:] for x in lines if x.startswith('checking ')]
  return begun[-1] if begun and len(begun[-1]) == 4 else []


def _crashed(one: child.Ended, begun: list[str], platform: str) -> Row:
  op, engine, case, dtype = begun
  engines = registry.operation(op).engines
  return {
    'op': op,
    'engine': engine,
    'case': case,
    'dtype': dtype,
    'outcome': 'failed',
    'error': None,
    'said': f'the process {one.words}',
    'default': any(
      e.name == engine and platform in e.platforms for e in engines
    ),
  }
