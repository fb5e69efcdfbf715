# SPDX-License-Identifier: Apache-2.0
"""--mode=bench: a table of the operations' engines and peers, and its JSON.

Or measurements of the machine, which have a folder of their own.
"""

import itertools
import json
import pathlib
import sys
from typing import Any

import jax
import rich.box
import rich.console
import rich.table

from ops import case as case_lib
from ops import dispatch, registry
from zaya_jax import config as config_lib
from zaya_jax.bench import contract, operations, runner
from zaya_jax.bench.machine import mode as machine_mode
from zaya_jax.bench.sweep import clock
from zaya_jax.config import exit_codes
from zaya_jax.runtime import durable
from zaya_jax.runtime import rows as rows_lib

_COLUMNS = ('engine', 'pass', 'ms', 'TFLOP/s', 'GB/s', 'of limit', 'MB')


def main(config: config_lib.Config) -> int:
  """Times what --bench.* names; writes --output, if it is given, as JSON.

  Returns:
    The exit code: 3 if --bench.check finds an engine that is wrong.

  Raises:
    UsageError: if an operation or a case has another name.
  """
  if config.bench.measurements:
    machine_mode.main(config, operations)
    return exit_codes.DONE
  chosen = _choose(config.bench)
  if config.bench.check:
    return _check(config, [op for op, _ in chosen])
  device = jax.devices()[0]
  console = rich.console.Console(highlight=False)
  console.print(f'{device.device_kind} ({dispatch.platform()})')
  found = []
  for operation, case in chosen:
    print(f'timing {operation.name} {case.name} ...', file=sys.stderr)
    rows = []
    for row in runner.rows(
      operation, case, config.bench.dtype, config.bench.repeats
    ):
      rows.append(row)
      # Whoever is stopped has what was timed.
      _write(config.output, found + rows, dtype=config.bench.dtype)
    console.print(_table(f'{operation.name} {case.name}', rows))
    found += rows
  _said(config.output)
  return exit_codes.DONE


def _check(config: config_lib.Config, chosen: list[registry.Operation]) -> int:
  """Compares, prints a row for each comparison, and writes --output."""
  known = _unfinished(config)
  found, shown = [], rows_lib.Rows(config.json)
  operations = {op.name: op for op in chosen}
  for name, operation in operations.items():
    budget = clock.Budget(60 * config.bench.minutes)
    before = [row for row in known if row['op'] == name]
    rows = contract.rows(operation, budget, config.bench.case, before)
    for row in itertools.chain(before, rows):
      shown.print(row)
      found.append(row)
      # Whoever ends the command leaves a file that says so.
      rest = contract.unfinished(operation, 'the command was ended')
      _write(config.output, [*found, rest])
  _write(config.output, found)
  _said(config.output)
  wrong = any(row['outcome'] == 'wrong' for row in found)
  return exit_codes.UNUSABLE if wrong else exit_codes.DONE


def _unfinished(config: config_lib.Config) -> list[contract.Row]:
  """What a command compared that had no time for all; else all begins anew.

  What was not right is compared again.
  """
  path = pathlib.Path(config.output)
  if not (config.resume and config.output and path.exists()):
    return []
  found = json.loads(path.read_text())
  if {k: found[k] for k in ('device', 'platform', 'versions')} != _here():
    return []
  rows = found['rows']
  is_late = any(row['outcome'] == 'no time' for row in rows)
  good = ('right', 'left out')
  return [row for row in rows if is_late and row['outcome'] in good]


def _here() -> dict[str, Any]:
  """What says whether an earlier result is of this machine."""
  return {
    'device': jax.devices()[0].device_kind,
    'platform': dispatch.platform(),
    'versions': {'jax': jax.__version__},
  }


def _write(path: str, rows: list[dict[str, Any]], **more: str) -> None:
  if not path:
    return
  result = {**_here(), **more, 'rows': rows}
  durable.replace(pathlib.Path(path), json.dumps(result, indent=2).encode())


def _said(path: str) -> None:
  if path:
    print(f'wrote {path}', file=sys.stderr)


def _choose(
  bench: config_lib.BenchConfig,
) -> list[tuple[registry.Operation, case_lib.Case]]:
  known = tuple(registry.FUNCTIONS)
  for name in bench.op:
    if name not in known:
      raise config_lib.UsageError(
        f'--bench.op={name} is no operation; choose of {", ".join(known)}, or '
        'of the machine.'
      )
  chosen = [registry.operation(name) for name in bench.op or known]
  pairs = [(op, case) for op in chosen for case in op.cases]
  names = sorted({case.name for _, case in pairs})
  for name in bench.case:
    if name not in names:
      raise config_lib.UsageError(
        f'--bench.case={name} is none of its cases: {", ".join(names)}.'
      )
  # A CPU would need minutes for a shape of ZAYA1-8B.
  large = dispatch.platform() != 'cpu'
  return [
    (op, case)
    for op, case in pairs
    if (case.name in bench.case if bench.case else case.zaya == large)
  ]


def _table(title: str, rows: list[dict[str, Any]]) -> rich.table.Table:
  table = rich.table.Table(
    title=title, title_justify='left', box=rich.box.SIMPLE_HEAD
  )
  for name in _COLUMNS:
    table.add_column(name, justify='left' if name in _COLUMNS[:2] else 'right')
  for row in rows:
    if 'skipped' in row:
      continue
    limit = row['of_limit']
    table.add_row(
      row['engine'],
      row['pass'],
      f'{row["ms"]:.3f}',
      f'{row["tflops"]:.3g}',
      f'{row["gbps"]:.3g}',
      '' if limit is None else f'{limit:.0%}',
      f'{row["temporary_mb"]:.1f}',
    )
  skipped = {row['engine']: row['skipped'] for row in rows if 'skipped' in row}
  table.caption = '\n'.join(f'{k}: {why}' for k, why in skipped.items())
  table.caption_justify = 'left'
  return table
