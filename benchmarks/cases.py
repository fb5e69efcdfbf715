# SPDX-License-Identifier: Apache-2.0
"""A preset on some devices, by default eight layers of ZAYA1-8B, case by case.

Each case is a process of its own, because the peak of a device's memory counts
from the start of its process; a case that fails is a row with its reason.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax

from benchmarks import record
from zaya_jax import config as config_lib

# Flags of --mesh, with N for the number of devices.
MESHES = {
  'zero1': '--mesh.replica=N',
  'fsdp': '--mesh.replica=1 --mesh.fsdp=N',
  'expert': '--mesh.replica=1 --mesh.expert=N',
  'context': '--mesh.replica=1 --mesh.context=N --mesh.context_mode=gather',
  'ring': '--mesh.replica=1 --mesh.context=N --mesh.context_mode=ring',
}
# Of ZAYA1-8B, which one device does not hold, as many layers as all devices of
# the cases have room for.
_LAYERS = '--model.num_layers=8'


def parser(output: str) -> argparse.ArgumentParser:
  """Arguments of every such benchmark; flags of the trainer may follow them.

  Args:
    output: name of the file in benchmarks/results.
  """
  made = argparse.ArgumentParser(allow_abbrev=False)
  numbers = lambda text: [int(part) for part in text.split(',')]
  made.add_argument('--preset', default='zaya1_8b', help='of configs/')
  made.add_argument('--devices', type=numbers, default=[1, 2, 4])
  made.add_argument('--rows', type=int, default=8, help='a device at a time')
  made.add_argument('--parts', type=int, default=8, help='one after another')
  made.add_argument('--steps', type=int, default=10, help='that are timed')
  made.add_argument('--chip', default='h200', help='of the plan, for a GPU')
  made.add_argument(
    '--platform', choices=('gpu', 'cpu'), default='gpu', help='of the devices'
  )
  made.add_argument('--timeout_s', type=int, default=400, help='of a case')
  made.add_argument('--case', help='NAME:DEVICES; measures it, prints JSON')
  made.add_argument(
    '--output', type=pathlib.Path, default=record.RESULTS / output
  )
  return made


def make_config(
  mesh: str, devices: int, args: argparse.Namespace, more: Sequence[str]
) -> config_lib.Config:
  """The run of a case: rows per device stay the same; flags in `more` win."""
  return config_lib.Config.parse(
    [
      f'--flagfile={flagfile(args.preset)}',
      '--model.dtype=bfloat16',
      *([_LAYERS] if args.preset == 'zaya1_8b' else []),
      *MESHES[mesh].replace('N', str(devices)).split(),
      f'--data.batch_size={devices * args.rows * args.parts}',
      f'--optim.accumulation={args.parts}',
      f'--plan.chip={"cpu" if args.platform == "cpu" else args.chip}',
      f'--plan.devices={devices}',
      *more,
    ]
  )


def flagfile(preset: str) -> pathlib.Path:
  """The flags of a preset."""
  return record.ROOT / 'configs' / f'{preset}.flags'


def run_one(
  args: argparse.Namespace, measure: Callable[[str, int], dict[str, Any]]
) -> None:
  """Measures `args.case` and prints its row as JSON."""
  name, _, devices = args.case.partition(':')
  if args.platform == 'cpu':
    jax.config.update('jax_num_cpu_devices', int(devices))
  row = {'case': name, 'devices': int(devices)}
  print(json.dumps(row | measure(name, int(devices))))


def run_all(
  module: str,
  cases: Sequence[str],
  args: argparse.Namespace,
  table: Callable[[Sequence[dict[str, Any]]], str],
) -> None:
  """Starts one process a case, prints the table and writes the result.

  Args:
    module: as 'benchmarks.scaling'; with --case it calls `run_one`.
    cases: NAME:DEVICES.
    args: of `parser`.
    table: of the rows so far; it may add to them what takes several.
  """
  about = record.circumstances(module, ('jax', 'jaxlib', 'flax', 'optax'))
  about['xla_flags'] = os.environ.get('XLA_FLAGS', '')
  rows = []
  for case in cases:
    rows.append(_child(module, case, args))
    text = table(rows)
    print(text if len(rows) == 1 else text.splitlines()[-1], flush=True)
    # What is there counts, whatever follows.
    record.write(args.output, {**about, 'rows': rows})


def compiled_bytes(compiled: jax.stages.Compiled) -> dict[str, int]:
  """What the compiler plans for one device."""
  stats = compiled.memory_analysis()
  kinds = ('argument', 'output', 'alias', 'temp', 'generated_code')
  found = {k: getattr(stats, f'{k}_size_in_bytes') for k in kinds}
  held = found['argument'] + found['output'] - found['alias']
  return {**found, 'total': held + found['temp']}


def _child(module, case, args) -> dict[str, Any]:
  """The row of a case, from a process of its own."""
  name, _, devices = case.partition(':')
  row = {'case': name, 'devices': int(devices)}
  env = {'XLA_PYTHON_CLIENT_MEM_FRACTION': '.93', **os.environ}
  if args.platform == 'cpu':
    env |= {'JAX_PLATFORMS': 'cpu', 'XLA_FLAGS': ''}
  command = [sys.executable, '-m', module, f'--case={case}', *sys.argv[1:]]
  try:
    done = subprocess.run(
      command,
      cwd=record.ROOT,
      env=env,
      capture_output=True,
      text=True,
      timeout=args.timeout_s,
      check=True,
    )
  except subprocess.TimeoutExpired:
    return {**row, 'error': f'not done within {args.timeout_s} s'}
  except subprocess.CalledProcessError as error:
    print(error.stderr[-4000:], file=sys.stderr)
    words = (error.stderr.strip().splitlines() or [f'{error.returncode}'])[-1]
    return {**row, 'error': words[:300]}
  return json.loads(done.stdout.splitlines()[-1])
