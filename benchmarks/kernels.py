# SPDX-License-Identifier: Apache-2.0
"""Our operations beside PyTorch's and JAX's own, on the device at hand.

    python -m benchmarks.kernels [--op=experts,attention] [--no_torch]

Ours and JAX's are timed by `--mode=bench`, PyTorch's by
`benchmarks/peers/torch_kernels.py`, one process after the other. A row's ratio
is the time of the best peer over its own: above 1 it is faster.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np

from benchmarks import record
from ops import registry

OURS = ('xla', 'triton', 'hopper', 'hip', 'cudnn')


def measure_ours(ops: list[str], flags: list[str]) -> dict:
  """What `--mode=bench` writes."""
  with tempfile.TemporaryDirectory() as folder:
    output = pathlib.Path(folder) / 'bench.json'
    command = [sys.executable, '-m', 'zaya_jax.main', '--mode=bench']
    command += [f'--bench.op={",".join(ops)}'] if ops else []
    command += [f'--output={output}', *flags]
    subprocess.run(command, check=True, cwd=record.ROOT)
    return json.loads(output.read_text())


def measure_torch(ops: list[str], sizes: str) -> list[dict]:
  """Rows of PyTorch's programs; none where it is not installed."""
  path = record.ROOT / 'benchmarks' / 'peers' / 'torch_kernels.py'
  done = subprocess.run(
    [sys.executable, str(path), sizes, *ops],
    stdout=subprocess.PIPE,
    text=True,
    check=False,
  )
  return [json.loads(line) for line in done.stdout.splitlines()]


def loads() -> dict[str, list[int]]:
  """Tokens of each expert, as the cases of ZAYA1-8B draw them."""
  found = {}
  for case in registry.operation('experts').cases:
    if case.zaya:
      rng = np.random.default_rng(0)
      (_, expert, gate_up, _), _ = case.arguments(rng, np.dtype('float32'))
      found[case.name] = np.bincount(expert, minlength=len(gate_up) + 1)[
        : len(gate_up)
      ].tolist()
  return found


def best(rows: list[dict]) -> list[dict]:
  """For each operation and pass: our fastest engine and the fastest peer."""
  found = {}
  for row in rows:
    if 'ms' not in row:
      continue
    key = row['op'], row['case'], row['pass']
    side = 'ours' if row['engine'] in OURS else 'peer'
    known = found.setdefault(key, {})
    if side not in known or row['ms'] < known[side]['ms']:
      known[side] = row
  return [
    {
      'op': op,
      'case': case,
      'pass': direction,
      **{side: [row['engine'], row['ms']] for side, row in sides.items()},
      **(
        {'ratio': sides['peer']['ms'] / sides['ours']['ms']}
        if len(sides) == 2
        else {}
      ),
    }
    for (op, case, direction), sides in found.items()
  ]


def main() -> None:
  """Measures, prints the best of both sides, writes the rows."""
  parser = argparse.ArgumentParser(allow_abbrev=False)
  parser.add_argument('--op', default='', help='operations, by commas')
  parser.add_argument('--no_torch', action='store_true')
  parser.add_argument('--sizes', default='{}', help='of PyTorch, as JSON')
  parser.add_argument(
    '--output', type=pathlib.Path, default=record.RESULTS / 'kernels.json'
  )
  args, flags = parser.parse_known_args()
  ops = args.op.split(',') if args.op else []
  result = record.circumstances('benchmarks.kernels', ['jax', 'jaxlib'])
  ours = measure_ours(ops, flags)
  rows = ours.pop('rows')
  if not args.no_torch:
    sizes = {'loads': loads(), **json.loads(args.sizes)}
    rows += measure_torch(ops, json.dumps(sizes))
  result |= ours | {'rows': rows, 'best': best(rows)}
  record.write(args.output, result)
  for row in result['best']:
    print(json.dumps(row))


if __name__ == '__main__':
  main()
