# SPDX-License-Identifier: Apache-2.0
"""Compiles the steps of ZAYA1's recipe for 1,024 MI300X, at 4k and at 32k.

    make plan-1024

No GPU is needed. Ends with 1 if a contract of the compiled step is broken, or
if all together take more CPU time or memory of this machine than they may. The
time on the clock, which other programs lengthen, is told alone.
"""

import os
import pathlib
import sys
import time

from zaya_jax import config as config_lib
from zaya_jax.plan import phases, planner
from zaya_jax.plan.compile import calls

CONFIGS = pathlib.Path(__file__).parents[1] / 'configs'
SECONDS, GIGABYTES = 600, 8  # Of CPU time, of memory.


def main() -> int:
  """Prints one block for each run; returns the exit code."""
  start, begin, most, broken = time.monotonic(), cpu_seconds(), 0.0, 0
  for name, config in phases.kinds(recipe()).items():
    found = planner.compile_step(config, planner.make(config))
    most = max(most, found['host_bytes'] / 1e9)
    broken += show(name, found, config.model.num_layers)
  clock, seconds = time.monotonic() - start, cpu_seconds() - begin
  print(
    f'together {clock:.0f} s, {seconds:.0f} s of CPU time of {SECONDS} s, '
    f'{most:.2f} GB of {GIGABYTES} GB of this machine'
  )
  return int(broken > 0 or seconds > SECONDS or most > GIGABYTES)


def cpu_seconds() -> float:
  """CPU time of this process and of those that it has waited for."""
  took = os.times()
  return took.user + took.system + took.children_user + took.children_system


def recipe() -> config_lib.Config:
  """The published phases of ZAYA1-8B."""
  return config_lib.Config.parse(
    [
      f'--flagfile={CONFIGS / "zaya1_8b.flags"}',
      f'--recipe={CONFIGS / "zaya1.toml"}',
      '--plan.devices=1024',
      '--plan.compile=rocm',
    ]
  )


def show(name, found, layers) -> int:
  """Prints a run; returns how many contracts are broken."""
  print(
    f'ZAYA1-8B on 1,024 MI300X, phase {name}: compiled in '
    f'{found["seconds"]:.0f} s with {found["host_bytes"] / 1e9:.2f} GB'
  )
  print(f'  {"bytes of a device":<22}{"formula":>16}{"compiler":>16}')
  for what, (formula, real) in found['compare'].items():
    share = f'{real / formula - 1:+10.1%}' if formula else ''
    print(f'  {what:<22}{formula:16,.0f}{real:16,.0f}{share}')
  for rule in found['contracts']:
    mark = 'ok    ' if rule['good'] else 'BROKEN'
    print(f'  {mark}  {rule["rule"]}: {rule["value"]}')
  counts = calls.counted(found['kernels'])
  print(f'  calls in a step of {layers} layers:')
  for kernel, count in sorted(counts.items()):
    each = f', {count // layers} a layer' if count % layers == 0 else ''
    print(f'    {kernel} {count:,}{each}')
  if not any(name.startswith('zaya_ops') for name in counts):
    print('  no kernels in HIP: make rocm-kernels')
  print(flush=True)
  return sum(not rule['good'] for rule in found['contracts'])


if __name__ == '__main__':
  sys.exit(main())
