# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's compute-sanitizer over every kernel of our operations.

    python -m benchmarks.memcheck [--op=attention,cca] [--tool=memcheck]

A process for each awkward case and each engine that takes it computes values
and gradients in bfloat16, each array in memory of its own; of the experts also
those that several layers write into one stack. One process more has a kernel
that stores right behind its result: the tool has to find it. The exit status is
1 if it does not, if a kernel has an error, if a process did not come to its end
or an engine ran nothing.

This is where a kernel touches memory that is not its own; what it computes is
compared with float64 in tests/ops/contract_test.py.
"""

import argparse
import concurrent.futures
import contextlib
import functools
import json
import operator
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any

from benchmarks import record
from ops import registry

# Each array allocated by itself, so that the tool knows where it ends (that of
# the allocator 'platform' ends with a page); no kernels but those of the
# program, and no libraries that it does not call.
ENVIRONMENT = {
  'XLA_PYTHON_CLIENT_ALLOCATOR': 'cuda_async',
  'XLA_PYTHON_CLIENT_PREALLOCATE': 'false',
  'CUDA_MODULE_LOADING': 'LAZY',
  'XLA_FLAGS': '--xla_gpu_autotune_level=0 --xla_gpu_enable_command_buffer= ',
}
PLANTED = ('planted', 'triton', 'behind')
# Of the experts, beside their cases: gradients go into stacks of all layers.
STACKS = 'stacks'
# The tool itself sometimes ends in a segmentation fault (2025.3).
_TRIES = 8
_RAN = 'ran '  # How a process names a case that it has run.


def find(
  op: str, engine: str, case: str, *, tool: str, limit_s: int
) -> dict[str, Any]:
  """A row: the case, if the engine takes it, and the errors that were counted.

  It also has the number of tries.
  """
  for tries in range(1, _TRIES + 1):
    row = {**_find(op, engine, case, tool, limit_s), 'tries': tries}
    if row.get('status') != -signal.SIGSEGV:
      break
  return row


def _find(op, engine, case, tool, limit_s):
  command = ['compute-sanitizer', f'--tool={tool}', sys.executable]
  command += ['-m', 'benchmarks.memcheck', '--op', op, '--engine', engine]
  command += ['--case', case]
  start = time.monotonic()
  with tempfile.TemporaryFile('w+') as output:
    process = subprocess.Popen(
      command,
      env={**os.environ, **ENVIRONMENT},
      cwd=record.ROOT,
      stdout=output,
      stderr=subprocess.STDOUT,
      start_new_session=True,
    )
    try:
      status = process.wait(limit_s)
    except subprocess.TimeoutExpired:
      os.killpg(process.pid, signal.SIGKILL)
      status = process.wait()
    output.seek(0)
    row = summary(output.read(), status)
  seconds = time.monotonic() - start
  return {
    'op': op,
    'engine': engine,
    'case': case,
    **row,
    'seconds': round(seconds, 1),
  }


def summary(output: str, status: int) -> dict[str, Any]:
  """What a process under the tool printed; errors None: it did not end."""
  lines = output.splitlines()
  cases = [line.removeprefix(_RAN) for line in lines if line.startswith(_RAN)]
  count = re.search(r'^=+ ERROR SUMMARY: (\d+) error', output, re.MULTILINE)
  row = {'cases': cases, 'errors': int(count[1]) if count else None}
  if status or not count:
    row['status'] = status
    row['last'] = [line for line in lines if line.strip()][-5:]
  return row


def clean(rows: list[dict[str, Any]]) -> bool:
  """Whether only the planted error was found, and every engine ran."""
  engine = operator.itemgetter('op', 'engine')
  planted = [row for row in rows if engine(row) == PLANTED[:2]]
  others = [row for row in rows if row not in planted]
  ran = {engine(row) for row in others if row['cases']}
  return (
    all(row['errors'] for row in planted)
    and all(row['errors'] == 0 for row in others)
    and ran == {engine(row) for row in others}
  )


def _engines(op):
  return registry.operation(op).engines


def run_case(op: str, engine: str, name: str) -> None:
  """What happens under the tool."""
  from benchmarks import stacks
  from ops import dispatch

  if (op, engine, name) == PLANTED:
    _store_behind()
    print(f'{_RAN}{name}', flush=True)
    return
  with (
    dispatch.use(**{op: engine}),
    contextlib.suppress(dispatch.UnsupportedError),
  ):
    if (op, name) == ('experts', STACKS):
      for add in (False, True):
        stacks.compare(add)
    else:
      _run(op, name)
    print(f'{_RAN}{name}', flush=True)


def _run(op, name):
  import jax
  import jax.numpy as jnp
  import numpy as np

  from ops import case as case_lib

  operation = registry.operation(op)
  (case,) = (case for case in operation.cases if case.name == name)
  args, kwargs = case.arguments(np.random.default_rng(0), jnp.dtype('bfloat16'))
  args = jax.tree.map(jnp.asarray, args)

  @jax.jit
  def both(args):
    run = functools.partial(operation.run, **kwargs)
    out, vjp = case_lib.vjp(run, case.gradients, args)
    return out, vjp(out) if case.gradients else ()

  jax.block_until_ready(both(args))


def _store_behind() -> None:
  import jax
  import jax.numpy as jnp
  from jax.experimental import pallas as pl
  from jax.experimental.pallas import triton as plgpu

  def kernel(place_ref, out_ref):
    place = place_ref[0] + jnp.arange(128)
    plgpu.store(out_ref.at[place], jnp.ones(128))

  store = pl.pallas_call(
    kernel, out_shape=jax.ShapeDtypeStruct((256,), jnp.float32)
  )
  # Known only when it runs; the first half is inside.
  jax.block_until_ready(jax.jit(store)(jnp.full(1, 192)))


def main() -> None:
  """Runs all, prints a line each, writes the rows."""
  parser = argparse.ArgumentParser(allow_abbrev=False)
  parser.add_argument('--op', default='', help='operations, by commas')
  parser.add_argument(
    '--engines',
    type=lambda text: text.split(','),
    default=['triton', 'hopper'],
    help='hip where `make -C ops/native cuda` has built it',
  )
  parser.add_argument('--tool', default='memcheck', help='of compute-sanitizer')
  parser.add_argument('--limit_s', type=int, default=600, help='of a case')
  parser.add_argument('--jobs', type=int, default=4)
  parser.add_argument('--engine', help=argparse.SUPPRESS)
  parser.add_argument('--case', help=argparse.SUPPRESS)
  parser.add_argument(
    '--output', type=pathlib.Path, default=record.RESULTS / 'memcheck.json'
  )
  args = parser.parse_args()
  known = {e.name for o in registry.FUNCTIONS for e in _engines(o)}
  if unknown := ', '.join({*args.engines} - known):
    parser.error(f'--engines: no {unknown}; there are {sorted(known)}')
  if args.engine:
    run_case(args.op, args.engine, args.case)
    return
  if not shutil.which('compute-sanitizer'):
    parser.error(
      'compute-sanitizer is not on PATH; it comes with the CUDA toolkit, '
      'usually in /usr/local/cuda/bin.'
    )
  result = record.circumstances('benchmarks.memcheck', ['jax', 'jaxlib'])
  each = [
    (op, engine.name, case.name)
    for op in (args.op.split(',') if args.op else registry.FUNCTIONS)
    for engine in _engines(op)
    for case in registry.operation(op).cases
    if engine.name in args.engines and not case.zaya
  ]
  each += [
    (op, engine, STACKS)
    for op, engine in dict.fromkeys(row[:2] for row in each)
    if op == 'experts'
  ]
  with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
    run = functools.partial(find, tool=args.tool, limit_s=args.limit_s)
    waiting = [pool.submit(run, *one) for one in (PLANTED, *each)]
    rows = []
    for done in concurrent.futures.as_completed(waiting):
      rows.append(done.result())
      print(json.dumps(rows[-1]), flush=True)
  record.write(args.output, {**result, 'tool': args.tool, 'rows': rows})
  sys.exit(not clean(rows))


if __name__ == '__main__':
  main()
