# SPDX-License-Identifier: Apache-2.0
"""Compiles one step of ZAYA1 for 1,024 MI300X, at 4k and at 32k tokens.

    make plan-1024

No GPU is needed. Ends with 1 if a contract of the compiled step is broken, or
if both together take longer, or more memory of this machine, than they may.
"""

import pathlib
import sys
import time

from zaya_jax import config as config_lib
from zaya_jax.plan import planner

FLAGFILE = pathlib.Path(__file__).parents[1] / 'configs' / 'zaya1_8b.flags'
SECONDS, GIGABYTES = 180, 8
# The same 16.8M tokens a step.
LONG = (
  '--data.seq_len=32768', '--data.batch_size=512', '--model.rope_theta=1e6',
  '--mesh.context=2',
)  # fmt: skip
RUNS = {'4k': (), '32k, --mesh.context=2': LONG}


def main() -> int:
  """Prints one block for each run; returns the exit code."""
  start, most, broken = time.monotonic(), 0.0, 0
  for name, words in RUNS.items():
    found = plan(words)
    most = max(most, found['host_bytes'] / 1e9)
    broken += show(name, found)
  seconds = time.monotonic() - start
  print(
    f'together {seconds:.0f} s of {SECONDS}, {most:.2f} GB of {GIGABYTES} GB '
    'of this machine'
  )
  return int(broken > 0 or seconds > SECONDS or most > GIGABYTES)


def plan(words):
  """What the compiler says of a run, beside the formulas."""
  config = config_lib.Config.parse(
    [
      f'--flagfile={FLAGFILE}',
      '--plan.devices=1024',
      '--plan.compile=rocm',
      *words,
    ]
  )
  return planner.compile_step(config, planner.make(config))


def show(name, found) -> int:
  """Prints a run; returns how many contracts are broken."""
  print(
    f'ZAYA1-8B on 1,024 MI300X at {name}: compiled in {found["seconds"]:.0f} s '
    f'with {found["host_bytes"] / 1e9:.2f} GB'
  )
  print(f'  {"bytes of a device":<22}{"formula":>16}{"compiler":>16}')
  for what, (formula, real) in found['compare'].items():
    share = f'{real / formula - 1:+10.1%}' if formula else ''
    print(f'  {what:<22}{formula:16,.0f}{real:16,.0f}{share}')
  for rule in found['contracts']:
    mark = 'ok    ' if rule['good'] else 'BROKEN'
    print(f'  {mark}  {rule["rule"]}: {rule["value"]}')
  ours = [name for name in found['kernels'] if name.startswith('zaya_ops')]
  print(f'  {", ".join(ours) or "no kernels in HIP: make rocm-kernels"}')
  print(flush=True)
  return sum(not rule['good'] for rule in found['contracts'])


if __name__ == '__main__':
  sys.exit(main())
