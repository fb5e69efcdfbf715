# SPDX-License-Identifier: Apache-2.0
"""A layer forward and backward, beside transformers, on one device.

    python -m benchmarks.layers [--layers=2,4] [--rows=4] [--FLAG ...]

Loss and gradients at the width of ZAYA1-8B, in bfloat16, for two numbers of
layers: their difference is what a layer takes, the rest is embedding, head and
loss. 40 layers are extrapolated from it. Each program runs in a process of its
own; flags of the trainer, as --ops.experts=triton, are ours.

Our parameters are float32. Those of the experts are cast once in a step, for
all parts of its batch: 'zaya_jax' has that in each pass; 'zaya_jax, cast
before' has not, like the peers, whose parameters are bfloat16.
"""

import argparse
import functools
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

from benchmarks import record

ALL = 40


def measure_ours(args: argparse.Namespace, more: list[str]) -> None:
  """Prints a row of our program for each number of layers."""
  import jax

  from benchmarks import scaling
  from ops import dispatch
  from zaya_jax import config as config_lib
  from zaya_jax.model import working
  from zaya_jax.parallel import mesh as mesh_lib
  from zaya_jax.train import gradients
  from zaya_jax.train import state as state_lib

  for layers in args.layers:
    config = config_lib.Config.parse(
      [
        f'--flagfile={record.ROOT}/configs/zaya1_8b.flags',
        '--model.remat=none',
        '--mesh.replica=1',
        f'--data.batch_size={args.rows}',
        f'--data.seq_len={args.length}',
        *more,
        f'--model.num_layers={layers}',
      ]
    )
    mesh = mesh_lib.make_mesh(config.mesh, jax.devices()[:1])
    with jax.set_mesh(mesh), dispatch.use(**vars(config.ops)):
      state = jax.jit(state_lib.make_init(config))()
      batch = scaling.random_batch(config, mesh)
      inputs = state.params, state.buffers, batch
      del state
      run = jax.jit(
        lambda *a, config=config: gradients.loss_and_grads(config, *a)
      )
      _print_row('zaya_jax', layers, run, inputs, args)
      cast = jax.jit(functools.partial(working.cast_experts, config.model))
      inputs = cast(inputs[0]), *inputs[1:]
      _print_row('zaya_jax, cast before', layers, run, inputs, args)
    inputs = None


def _print_row(way, layers, run, inputs, args):
  """Of a function: its time, once it is compiled and warm."""
  import jax

  from ops import dispatch
  from zaya_jax.train import step

  options = step.compiler_options()
  compiled = run.lower(*inputs).compile(compiler_options=options)
  times = []
  for i in range(args.repeats + 3):
    start = time.perf_counter()
    jax.block_until_ready(compiled(*inputs))
    if i >= 3:
      times.append(time.perf_counter() - start)
  row = {
    'way': way,
    'layers': layers,
    'seconds': statistics.median(times),
    'temporary_bytes': compiled.memory_analysis().temp_size_in_bytes,
    'engines': {c.op: c.engine for c in dispatch.choices()},
  }
  print(json.dumps(row), flush=True)


def measure_theirs(args: argparse.Namespace) -> list[dict]:
  """Rows of transformers; none where it is not installed."""
  path = record.ROOT / 'benchmarks' / 'peers' / 'hf_layers.py'
  how = {name: getattr(args, name) for name in ('layers', 'rows', 'length')}
  how |= {'repeats': args.repeats, 'shape': args.shape, 'ways': args.ways}
  return _lines([sys.executable, str(path), json.dumps(how)])


def summary(rows: list[dict], tokens: int) -> list[dict]:
  """Milliseconds of a layer and of the rest, and 40 layers' tokens/s."""
  found = []
  for way in dict.fromkeys(row['way'] for row in rows):
    mine = [r for r in rows if r['way'] == way and 'seconds' in r]
    if len(mine) < 2:
      continue
    few, many = mine[0], mine[-1]
    layers = many['layers'] - few['layers']
    each = (many['seconds'] - few['seconds']) / layers
    rest = few['seconds'] - few['layers'] * each
    found.append(
      {
        'way': way,
        'layer_ms': 1e3 * each,
        'rest_ms': 1e3 * rest,
        'tokens_per_s_of_40_layers': tokens / (rest + ALL * each),
      }
    )
  return found


def _lines(command, env=None) -> list[dict]:
  done = subprocess.run(
    command,
    stdout=subprocess.PIPE,
    text=True,
    check=False,
    cwd=record.ROOT,
    env=env,
  )
  return [json.loads(x) for x in done.stdout.splitlines() if x[:1] == '{']


def main() -> None:
  """Measures both, prints the summary, writes all."""
  numbers = lambda text: [int(part) for part in text.split(',')]
  parser = argparse.ArgumentParser(allow_abbrev=False)
  parser.add_argument('--layers', type=numbers, default=[2, 4])
  parser.add_argument('--rows', type=int, default=4)
  parser.add_argument('--length', type=int, default=4096)
  parser.add_argument('--repeats', type=int, default=10)
  parser.add_argument(
    '--shape', type=json.loads, default={'vocab_size': 262272}
  )
  parser.add_argument('--ways', type=str.split, default=['compile', 'eager'])
  parser.add_argument('--ours', action='store_true', help='prints our rows')
  parser.add_argument('--no_peer', action='store_true')
  parser.add_argument(
    '--output', type=pathlib.Path, default=record.RESULTS / 'layers.json'
  )
  args, more = parser.parse_known_args()
  if args.ours:
    measure_ours(args, more)
    return
  about = record.circumstances('benchmarks.layers', ('jax', 'jaxlib', 'flax'))
  env = {'XLA_PYTHON_CLIENT_MEM_FRACTION': '.93', **os.environ}
  command = [sys.executable, '-m', 'benchmarks.layers', '--ours', *sys.argv[1:]]
  rows = _lines(command, env)
  if not args.no_peer:
    rows += measure_theirs(args)
  found = summary(rows, args.rows * args.length)
  record.write(args.output, {**about, 'rows': rows, 'summary': found})
  for row in found:
    print(json.dumps(row))


if __name__ == '__main__':
  main()
