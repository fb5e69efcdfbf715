# SPDX-License-Identifier: Apache-2.0
"""How long a training run takes from its command to its first step.

    python -m benchmarks.startup --preset=small [--FLAG ...]

Each start is a process of its own; the first finds nothing that another has
kept, the second what the first has left in the folder of JAX's cache: the
lowered step and compiled programs. Both take the same way as the trainer does
(`train.ways`, `train.kept`), on random tokens, and say what each phase took:

  import   until all modules are imported
  devices  until JAX has found them
  init     the first state, compiled and computed
  lower    the step traced and lowered, or read
  compile  by XLA, or loaded
  step     the first one, with its loss read
  total    of these

`step_ms` is the median of later steps, that no compiler option is paid for
there. With --compile_only neither state nor step is made: for models that need
several devices.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

_BEGAN = time.perf_counter()
_PHASES = ('import', 'devices', 'init', 'lower', 'compile', 'step')


class _Clocked:
  """A jitted step, or what is lowered of it, that says what it takes."""

  def __init__(self, made: Any, row: dict[str, Any]):
    self._made, self._row = made, row

  def lower(self, *arguments: Any) -> '_Clocked':
    start = time.perf_counter()
    lowered = self._made.lower(*arguments)
    self._row['lower_s'] = time.perf_counter() - start
    return _Clocked(lowered, self._row)

  def compile(self) -> Any:
    start = time.perf_counter()
    program = self._made.compile()
    self._row['compile_s'] = time.perf_counter() - start
    return program


def main() -> None:
  """Starts twice, prints and writes what each phase took."""
  args, more = _parser().parse_known_args()
  if args.child:
    print(json.dumps(start(args, more)), flush=True)
    return
  from benchmarks import record

  about = record.circumstances('benchmarks.startup', ('jax', 'jaxlib'))
  rows = []
  with tempfile.TemporaryDirectory() as folder:
    for name in ('first', 'second'):
      rows.append({'start': name, **_child(args, folder)})
      print(json.dumps(rows[-1]), flush=True)
      record.write(args.output, {**about, 'rows': rows})


def start(args: argparse.Namespace, flags: list[str]) -> dict[str, Any]:
  """One start, in this process; seconds of each phase, and notes."""
  row: dict[str, Any] = {'preset': args.preset}
  notes: list[str] = []
  import jax

  from benchmarks import ladder, scaling
  from ops import dispatch
  from zaya_jax.checkpoint import arrays
  from zaya_jax.parallel import mesh as mesh_lib
  from zaya_jax.train import state as state_lib
  from zaya_jax.train import step as step_lib
  from zaya_jax.train import ways as ways_lib
  from zaya_jax.train.kept import step as kept

  row['import_s'] = time.perf_counter() - _BEGAN
  clock = time.perf_counter()
  devices = jax.devices()[:1]
  row['devices_s'] = time.perf_counter() - clock
  config = ladder.parse(args.preset, flags)
  mesh = mesh_lib.make_mesh(config.mesh, devices)
  place = jax.config.values['jax_compilation_cache_dir']
  with jax.set_mesh(mesh), dispatch.use(**vars(config.ops)):
    ways = ways_lib.Ways(config, mesh)
    init = jax.jit(state_lib.make_init(config))
    clock = time.perf_counter()
    if args.compile_only:
      state = arrays.on_mesh(jax.eval_shape(init), mesh)
    else:
      state = jax.block_until_ready(init())
    row['init_s'] = time.perf_counter() - clock
    batch = scaling.random_batch(config, mesh)

    def make(chosen):
      step = step_lib.make_train_step(chosen, hold=True)
      options = step_lib.compiler_options()
      made = kept.Step(step, options, chosen, place, notes.append)
      return _Clocked(made, row)

    program = ways.compile(make, config, (state, batch), notes.append)
    if not args.compile_only:
      _step(program, state, batch, args.steps, row)
  row['total_s'] = sum(row.get(f'{name}_s', 0.0) for name in _PHASES)
  return {
    **row,
    'device': devices[0].device_kind,
    'notes': notes,
    'kept_bytes': _size(place),
  }


def _step(program, state, batch, steps, row) -> None:
  """The first step, then `steps` more for their time."""
  import jax

  times = []
  for i in range(steps + 1):
    clock = time.perf_counter()
    state, measured = program(state, batch)
    jax.block_until_ready(measured)
    times.append(time.perf_counter() - clock)
    if i == 0:
      row['loss'] = float(measured['train/loss'])
      row['step_s'] = time.perf_counter() - clock
  row['step_ms'] = 1e3 * statistics.median(times[1:][-20:] or times)
  row['last_loss'] = float(measured['train/loss'])


def _size(folder) -> int:
  return sum(p.stat().st_size for p in pathlib.Path(folder).rglob('*.step'))


def _child(args, folder) -> dict[str, Any]:
  done = subprocess.run(
    [sys.executable, '-m', 'benchmarks.startup', '--child', *sys.argv[1:]],
    stdout=subprocess.PIPE,
    env={**os.environ, 'JAX_COMPILATION_CACHE_DIR': folder},
    text=True,
    check=True,
    timeout=args.timeout_s,
  )
  return json.loads(done.stdout.splitlines()[-1])


def _parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
    description='Further flags are those of the trainer.'
  )
  results = pathlib.Path(__file__).parent / 'results'
  parser.add_argument('--preset', default='small')
  parser.add_argument('--steps', type=int, default=60)
  parser.add_argument('--compile_only', action='store_true')
  parser.add_argument('--child', action='store_true')
  parser.add_argument('--timeout_s', type=float, default=600.0)
  parser.add_argument(
    '--output', type=pathlib.Path, default=results / 'startup.json'
  )
  return parser


if __name__ == '__main__':
  main()
