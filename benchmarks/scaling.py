# SPDX-License-Identifier: Apache-2.0
"""Training speed and memory on 1, 2 and 4 devices, beside the plan of it.

  python -m benchmarks.scaling [--devices=1,2,4 --meshes=zero1,expert] [--FLAG]

Eight layers of ZAYA1-8B at full width, random tokens. Weak scaling: each device
computes the same number of rows in every case (`--rows`, in `--parts` one after
another); efficiency is tokens per second of a device over those of one device.
All flags of the trainer are understood behind those of this program.

Each case is a process of its own, because the peak of a device's memory counts
from the start of its process; a case that fails is a row with its reason. The
time of the optimizer alone is that of the jitted update with gradients given
where the step sums them, Muon's that of the same with Muon's matrices alone.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import optax

from benchmarks import record
from zaya_jax import config as config_lib
from zaya_jax import flags, step
from zaya_jax import mesh as mesh_lib
from zaya_jax.optim import labels
from zaya_jax.optim import optimizer as optimizer_lib
from zaya_jax.plan import planner

# Flags of --mesh, with N for the number of devices.
MESHES = {
  'zero1': '--mesh.replica=N',
  'fsdp': '--mesh.replica=1 --mesh.fsdp=N',
  'expert': '--mesh.replica=1 --mesh.expert=N',
  'context': '--mesh.replica=1 --mesh.context=N --mesh.context_mode=gather',
  'ring': '--mesh.replica=1 --mesh.context=N --mesh.context_mode=ring',
}
MODEL = (
  f'--flagfile={record.ROOT}/configs/zaya1_8b.flags',
  '--model.num_layers=8',
  '--model.dtype=bfloat16',
  '--model.remat=none',
)
_WARM_UP = 3
_TIMEOUT_S = 400  # Of a case.


def main() -> None:
  """Measures, prints a table and writes benchmarks/results/scaling_*.json."""
  parser = _parser()
  args, more = parser.parse_known_args()
  if args.case:
    mesh, _, devices = args.case.partition(':')
    config = make_config(mesh, int(devices), args, more)
    if args.platform == 'cpu':
      jax.config.update('jax_num_cpu_devices', int(devices))
    row = measure(config, args.steps)
    print(json.dumps({'mesh': mesh, 'devices': int(devices), **row}))
    return
  about = record.circumstances(
    'benchmarks.scaling', ('jax', 'jaxlib', 'flax', 'optax')
  )
  about['xla_flags'] = os.environ.get('XLA_FLAGS', '')
  cases = [f'{args.meshes[0]}:{n}' for n in args.devices if n == 1]
  cases += [f'{m}:{n}' for n in args.devices if n > 1 for m in args.meshes]
  rows = []
  for case in cases:
    rows.append(_child(case, args))
    rows = with_efficiency(rows)
    print(table(rows[-1:], header=len(rows) == 1), flush=True)
    settings = {k: getattr(args, k) for k in ('rows', 'parts', 'steps')}
    result = {**about, **settings, 'flags': more, 'rows': rows}
    record.write(args.output, result)  # What is there counts, whatever follows.


def make_config(
  mesh: str, devices: int, args: argparse.Namespace, more: Sequence[str]
) -> config_lib.Config:
  """The run of a case; flags in `more` win."""
  return flags.parse(
    [
      *MODEL,
      *MESHES[mesh].replace('N', str(devices)).split(),
      f'--data.batch_size={devices * args.rows * args.parts}',
      f'--optim.accumulation={args.parts}',
      f'--plan.chip={"cpu" if args.platform == "cpu" else args.chip}',
      f'--plan.devices={devices}',
      *more,
    ]
  )


def measure(config: config_lib.Config, steps: int) -> dict[str, Any]:
  """Trains some steps on the first --plan.devices devices.

  Args:
    config: of the run and of its plan.
    steps: how many are timed, after a few that are not.

  Returns:
    One row: what was measured, and under 'plan' what was to be expected.
  """
  devices = jax.devices()[: config.plan.devices]
  mesh = mesh_lib.make_mesh(config.mesh, devices)
  with jax.set_mesh(mesh):
    state = jax.jit(step.make_init(config))()
    batch = random_batch(config, mesh)
    peaks = {'init': peak_bytes(devices)}
    started = time.perf_counter()
    program = jax.jit(step.make_train_step(config), donate_argnums=0)
    compiled = program.lower(state, batch).compile()
    compile_s = time.perf_counter() - started
    peaks['compile'] = peak_bytes(devices)  # Trying kernels takes memory, too.
    state, losses, seconds, measured = _train(compiled, state, batch, steps)
    peak = peak_bytes(devices)  # Before the updates alone need more.
    grads = _gradients(config, mesh, state, batch)
    params, state = state.params, None
    update_s = _update_seconds(config, params, grads, steps)
  step_s = statistics.median(seconds)
  tokens = config.data.batch_size * config.data.seq_len
  return {
    'device': devices[0].device_kind,
    'flags': _changed(config),
    'tokens_per_step': tokens,
    'step_s': step_s,
    'step_s_all': seconds,
    'tokens_per_s_device': tokens / step_s / len(devices),
    **update_s,
    'optimizer_share': update_s['optimizer_s'] / step_s,
    'muon_share': update_s['muon_s'] / step_s,
    'peak_bytes': peak,
    'peak_bytes_before': peaks,
    'compiled_bytes': compiled_bytes(compiled),
    'compile_s': compile_s,
    'losses': losses,
    'load_max': float(measured['moe/load_max']),
    'plan': _plan(config),
  }


def random_batch(
  config: config_lib.Config, mesh: jax.sharding.Mesh
) -> dict[str, jax.Array]:
  """Random tokens in whole rows of one document each, on the devices."""
  rng = np.random.default_rng(0)
  shape = (config.data.batch_size, config.data.seq_len)
  tokens = rng.integers(0, config.model.vocab_size, shape, np.int32)
  positions = np.broadcast_to(np.arange(shape[1], dtype=np.int32), shape)
  batch = {
    'tokens': tokens,
    'targets': np.roll(tokens, -1, axis=1),
    'segment_ids': np.ones(shape, np.int32),
    'positions': positions,
    'weights': np.ones(shape, np.float32),
  }
  return step.put_batch(mesh, batch)


def peak_bytes(devices: Sequence[jax.Device]) -> int | None:
  """The most that any of the devices has held so far; None: it does not say."""
  stats = [device.memory_stats() for device in devices]
  return max(s['peak_bytes_in_use'] for s in stats) if all(stats) else None


def compiled_bytes(compiled: jax.stages.Compiled) -> dict[str, int]:
  """What the compiler plans for one device."""
  stats = compiled.memory_analysis()
  kinds = ('argument', 'output', 'alias', 'temp', 'generated_code')
  found = {k: getattr(stats, f'{k}_size_in_bytes') for k in kinds}
  held = found['argument'] + found['output'] - found['alias']
  return {**found, 'total': held + found['temp']}


def with_efficiency(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
  """The rows with 'efficiency': a device's speed over that of the one alone."""
  done = [row for row in rows if 'error' not in row]
  for row in done if done and done[0]['devices'] == 1 else []:
    alone = done[0]['tokens_per_s_device']
    row['efficiency'] = row['tokens_per_s_device'] / alone
  return list(rows)


def table(rows: Sequence[dict[str, Any]], header: bool = True) -> str:
  """The rows for people; '/' is measured over planned."""
  lines = [
    'mesh     devices  tok/s/dev  effic.   step s  / plan  optim.   Muon'
    '  peak GiB compiled    plan  / plan'
  ]
  for row in rows:
    name = f'{row["mesh"]:<8} {row["devices"]:7}'
    if 'error' in row:
      lines.append(f'{name}  {row["error"]}')
      continue
    plan, gib = row['plan'], 2**30
    compiled = row['compiled_bytes']['total']
    peak = row['peak_bytes'] or compiled
    lines.append(
      f'{name}  {row["tokens_per_s_device"]:9,.0f}  '
      f'{row.get("efficiency", float("nan")):6.1%}  {row["step_s"]:7.3f}  '
      f'{row["step_s"] / plan["time"]["step"]:6.2f}  '
      f'{row["optimizer_share"]:6.1%} {row["muon_share"]:6.1%}  '
      f'{peak / gib:8.2f} {compiled / gib:8.2f} '
      f'{plan["memory"]["total"] / gib:7.2f}  '
      f'{peak / plan["memory"]["total"]:6.2f}'
    )
  return '\n'.join(lines if header else lines[1:])


def _parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(allow_abbrev=False)
  numbers = lambda text: [int(part) for part in text.split(',')]
  parser.add_argument('--devices', type=numbers, default=[1, 2, 4])
  parser.add_argument(
    '--meshes',
    type=lambda text: text.split(','),
    default=['zero1', 'fsdp', 'expert', 'context'],
    help=f'of {", ".join(MESHES)}; one device has no choice.',
  )
  parser.add_argument('--rows', type=int, default=8, help='a device at a time')
  parser.add_argument('--parts', type=int, default=8, help='one after another')
  parser.add_argument('--steps', type=int, default=10, help='that are timed')
  parser.add_argument('--chip', default='h200', help='of the plan, for a GPU')
  parser.add_argument(
    '--platform', choices=('gpu', 'cpu'), default='gpu', help='of the devices'
  )
  parser.add_argument('--case', help='MESH:DEVICES; measures it, prints JSON')
  parser.add_argument(
    '--output', type=pathlib.Path, default=record.RESULTS / 'scaling_h200.json'
  )
  return parser


def _child(case: str, args: argparse.Namespace) -> dict[str, Any]:
  """The row of a case, from a process of its own."""
  mesh, _, devices = case.partition(':')
  row = {'mesh': mesh, 'devices': int(devices)}
  env = {'XLA_PYTHON_CLIENT_MEM_FRACTION': '.93', **os.environ}
  if args.platform == 'cpu':
    env |= {'JAX_PLATFORMS': 'cpu', 'XLA_FLAGS': ''}
  try:
    done = subprocess.run(
      [*(sys.executable, '-m', 'benchmarks.scaling'), f'--case={case}']
      + sys.argv[1:],
      cwd=record.ROOT,
      env=env,
      capture_output=True,
      text=True,
      timeout=_TIMEOUT_S,
      check=True,
    )
  except subprocess.TimeoutExpired:
    return {**row, 'error': f'not done within {_TIMEOUT_S} s'}
  except subprocess.CalledProcessError as error:
    print(error.stderr[-4000:], file=sys.stderr)
    words = (error.stderr.strip().splitlines() or [f'{error.returncode}'])[-1]
    return {**row, 'error': words[:300]}
  return json.loads(done.stdout.splitlines()[-1])


def _train(compiled, state, batch, steps):
  """The state, losses and seconds of the timed steps, the last metrics."""
  losses, seconds = [], []
  for i in range(_WARM_UP + steps):
    started = time.perf_counter()
    state, measured = jax.block_until_ready(compiled(state, batch))
    losses.append(float(measured['train/loss']))
    if i >= _WARM_UP:
      seconds.append(time.perf_counter() - started)
  return state, losses, seconds, measured


def _update_seconds(config, params, grads, steps) -> dict[str, float]:
  """Medians of the whole update, and of that of Muon's matrices alone."""
  kinds = labels.label(params, optimizer=config.optim.name)
  muon = lambda tree: _only(tree, kinds, 'muon')
  return {
    'optimizer_s': _update_s(config, params, grads, steps),
    'muon_s': _update_s(config, muon(params), muon(grads), steps),
  }


def _update_s(config, params, grads, steps) -> float:
  optimizer = optimizer_lib.make_optimizer(config.optim, config.num_steps)
  opt_state = jax.jit(optimizer.init)(params)

  def update(grads, opt_state, params):
    updates, opt_state = optimizer.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state

  program = jax.jit(update, donate_argnums=1)
  compiled = program.lower(grads, opt_state, params).compile()
  seconds = []
  for _ in range(_WARM_UP + steps):
    started = time.perf_counter()
    _, opt_state = jax.block_until_ready(compiled(grads, opt_state, params))
    seconds.append(time.perf_counter() - started)
  return statistics.median(seconds[_WARM_UP:])


def _gradients(config, mesh, state, batch) -> Any:
  """Numbers of the size of gradients, where the step sums them."""
  abstract = jax.eval_shape(
    lambda state, batch: step.loss_and_grads(
      config, state.params, state.buffers, batch
    )[1],
    state,
    batch,
  )

  def one(param, grad):
    there = jax.sharding.NamedSharding(mesh, grad.sharding.spec)
    return jax.device_put(1e-3 * param, there)

  return jax.tree.map(one, state.params, abstract)


def _only(tree, kinds, kind) -> dict[str, Any]:
  """The nested dict of the leaves of one kind."""
  if not isinstance(tree, dict):
    return tree
  found = {k: _only(v, kinds[k], kind) for k, v in tree.items()}
  wanted = lambda k: kinds[k] == kind or isinstance(kinds[k], dict) and found[k]
  return {k: v for k, v in found.items() if wanted(k)}


def _plan(config) -> dict[str, Any]:
  """The plan's memory, time, collectives and share of Muon."""
  plan = planner.make(config)
  return {k: plan[k] for k in ('memory', 'time', 'collectives', 'muon')}


def _changed(config) -> list[str]:
  """The flags that are not those of the configuration of 8B parameters."""
  published = config_lib.Config.from_flagfile(MODEL[0].partition('=')[2])
  return flags.differences(published, config)


if __name__ == '__main__':
  main()
