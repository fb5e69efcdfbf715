# SPDX-License-Identifier: Apache-2.0
"""Steps that were measured on GPUs, beside the plan of each.

  python -m benchmarks.planned

Reads what other programs of this folder have written into results/, and plans
the same settings: by data sheets (--machine=none), and by the machine that
comes with the program. No GPU is needed. Errors are plan over measurement.
"""

import json
import pathlib
import statistics
from collections.abc import Iterator
from typing import Any

from zaya_jax import config as config_lib
from zaya_jax.plan import planner

_ROOT = pathlib.Path(__file__).parents[1]
_RESULTS = _ROOT / 'benchmarks' / 'results'
# File -> preset; of `ladder` the row says it.
_FILES = {
  'scaling_h100': 'zaya1_8b',
  'scaling_context_h100': 'zaya1_8b',
  'scaling_medium_h100': 'medium',
  'training_h200': 'zaya1_8b',
  'scaling_8b_h200': 'zaya1_8b',
  'ladder_h100': '',
  'ladder_h200': '',
  'ladder_small_h100': '',
}
# What presets said then, and do not say any more.
_BEFORE = {'training_h200': ('--model.remat=block', '--model.scan_layers=true')}
# `small` of 16 layers of width 512, by its parameters.
_SMALL_BEFORE = 215_111_056
_SMALL_FLAGS = (
  '--model.num_layers=16',
  '--model.d_model=512',
  '--model.num_heads=2',
  '--model.num_kv_heads=1',
  '--model.d_expert=512',
)
# Measured before kernels in attention over a context axis, or on H200s before
# copies between operations went (dataflow_h200.json): other programs.
_CHANGED = {('scaling_h100', case) for case in (
  'context', 'context 32k', 'ring',
)} | {('training_h200', 'zero1')}  # fmt: skip
_CHANGED_BEFORE = {'ladder_h200': '2026-11-25'}


def main() -> None:
  """Prints a table and writes benchmarks/results/planned.json."""
  rows = [_row(*known) for known in _measured()]
  print(table(rows))
  content = {'command': 'python -m benchmarks.planned', 'rows': rows}
  path = _RESULTS / 'planned.json'
  path.write_text(json.dumps(content, indent=1) + '\n')
  print('wrote', path.relative_to(_ROOT))


def table(rows: list[dict[str, Any]]) -> str:
  """The rows for people, and how far plans are off."""
  lines = [
    f'{"measured in, case":<44} dev.   step ms  by sheets     now  best to '
    'worst      GB   plan'
  ]
  for row in rows:
    low, high = row['range']
    held = row['memory'] / row['peak_bytes'] - 1
    note = '' if row['counts'] else ' *'
    lines.append(
      f'{row["file"] + " " + row["case"] + note:<44} {row["devices"]:4} '
      f'{1e3 * row["step_s"]:9.1f}  {_off(row, "sheet_s"):+9.0%} '
      f'{_off(row, "plan_s"):+7.1%}  {1e3 * low:6.0f} {1e3 * high:6.0f} '
      f'{row["peak_bytes"] / 1e9:8.1f} {held:+6.0%}'
    )
  now = [row for row in rows if row['counts']]
  for name, field in (('data sheets', 'sheet_s'), ('machine files', 'plan_s')):
    off = [abs(_off(row, field)) for row in now]
    near = sum(each <= 0.1 for each in off)
    lines.append(
      f'{name}: median error {statistics.median(off):.1%}, largest '
      f'{max(off):.1%}; {near} of {len(off)} within 10 %'
    )
  off = [abs(row['memory'] / row['peak_bytes'] - 1) for row in now]
  near = sum(each <= 0.05 for each in off)
  lines.append(
    f'memory: median error {statistics.median(off):.1%}, largest '
    f'{max(off):.1%}; {near} of {len(off)} within 5 %'
  )
  lines.append('* the program has become faster since: not counted.')
  return '\n'.join(lines)


def _off(row, field) -> float:
  return row[field] / row['step_s'] - 1


def _measured() -> Iterator[tuple[str, str, dict[str, Any]]]:
  """File, preset and row of each measurement."""
  for name, preset in _FILES.items():
    content = json.loads((_RESULTS / f'{name}.json').read_text())
    for run in content.get('runs', [content]):
      changed = run.get('date', '') < _CHANGED_BEFORE.get(name, '')
      for row in run['rows']:
        ours = row.get('program', 'zaya_jax') == 'zaya_jax'
        if 'step_s' in row and ours:
          yield name, preset or row['preset'], {**row, 'changed': changed}


def _row(name, preset, measured) -> dict[str, Any]:
  """A measurement and both plans of it."""
  chip = 'h200' if 'H200' in measured['device'] else 'h100'
  devices = measured.get('devices', 1)
  before = measured.get('parameters') == _SMALL_BEFORE
  words = [
    f'--flagfile={_ROOT / "configs" / preset}.flags',
    '--mesh.replica=1',
    '--model.dtype=bfloat16',
    *_BEFORE.get(name, ()),
    *(_SMALL_FLAGS if before else ()),
    *_flags(measured.get('flags') or measured['chosen']),
    f'--plan.chip={chip}',
    f'--plan.devices={devices}',
  ]
  plans = {
    machine: planner.make(
      config_lib.Config.parse([*words, f'--machine={machine}'])
    )
    for machine in ('none', chip)
  }
  now, case = plans[chip], measured.get('case', preset)
  case += ', 16 x 512' if before else ''
  return {
    'file': name,
    'case': case,
    'chip': chip,
    'devices': devices,
    'flags': ' '.join(words[1:]),
    'counts': not measured['changed'] and (name, case) not in _CHANGED,
    'step_s': measured['step_s'],
    'sheet_s': plans['none']['time']['step'],
    'plan_s': now['time']['step'],
    'range': now['time']['step_range'],
    'parts': {
      p['name']: p['seconds']
      for p in (*now['time']['parts'], *now['time']['update'])
    },
    'network_exposed': now['time']['network_exposed'],
    'peak_bytes': measured['peak_bytes'],
    'memory': now['memory']['total'],
  }


def _flags(changes: list[str]) -> Iterator[str]:
  """Words of '--name: before -> after'."""
  for change in changes:
    name, _, values = change.partition(': ')
    yield f'{name}={values.partition(" -> ")[2]}'


if __name__ == '__main__':
  main()
