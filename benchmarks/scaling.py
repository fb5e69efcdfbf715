# SPDX-License-Identifier: Apache-2.0
"""Training speed and memory on 1, 2 and 4 devices, beside the plan of it.

  python -m benchmarks.scaling [--devices=1,2,4 --meshes=zero1,expert] [--FLAG]

Eight layers of ZAYA1-8B at full width, random tokens. Weak scaling: each device
computes the same number of rows in every case (`--rows`, in `--parts` one after
another); efficiency is tokens per second of a device over those of one device.
All flags of the trainer are understood behind those of this program.

The time of the optimizer alone is that of the jitted update with gradients
given where the step sums them, Muon's that of Muon's matrices alone.
"""

import functools
import statistics
import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from benchmarks import cases, updates
from zaya_jax import config as config_lib
from zaya_jax.model import working
from zaya_jax.optim import groups
from zaya_jax.parallel import batch as batch_lib
from zaya_jax.parallel import mesh as mesh_lib
from zaya_jax.plan import planner
from zaya_jax.train import state as state_lib
from zaya_jax.train import step

_WARM_UP = 3


def main() -> None:
  """Measures, prints a table and writes benchmarks/results/scaling_*.json."""
  parser = cases.parser('scaling_h200.json')
  parser.add_argument(
    '--meshes',
    type=lambda text: text.split(','),
    default=['zero1', 'fsdp', 'expert', 'context'],
    help=f'of {", ".join(cases.MESHES)}; one device has no choice.',
  )
  args, more = parser.parse_known_args()
  if args.case:
    cases.run_one(
      args,
      lambda mesh, devices: measure(
        cases.make_config(mesh, devices, args, more), args.steps
      ),
    )
    return
  names = [f'{args.meshes[0]}:1'] if 1 in args.devices else []
  names += [f'{m}:{n}' for n in args.devices if n > 1 for m in args.meshes]
  cases.run_all('benchmarks.scaling', names, args, table)


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
    state = jax.jit(state_lib.make_init(config))()
    batch = random_batch(config, mesh)
    peaks = {'init': peak_bytes(devices)}
    started = time.perf_counter()
    program = jax.jit(step.make_train_step(config), donate_argnums=0)
    lowered = program.lower(state, batch)
    compiled = lowered.compile(compiler_options=step.compiler_options())
    compile_s = time.perf_counter() - started
    peaks['compile'] = peak_bytes(devices)  # Trying kernels takes memory, too.
    state, losses, seconds, measured = _train(compiled, state, batch, steps)
    peak = peak_bytes(devices)  # Before the updates alone need more.
    state = None
    update_s = {'optimizer_s': float('nan'), 'muon_s': float('nan')}
    try:
      update_s = _update_seconds(config, steps)
    except jax.errors.JaxRuntimeError as error:  # It may need more room.
      update_s['update_error'] = str(error).splitlines()[0]
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
    'compiled_bytes': cases.compiled_bytes(compiled),
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
  return batch_lib.put_batch(mesh, batch)


def peak_bytes(devices: Sequence[jax.Device]) -> int | None:
  """The most that any of the devices has held so far; None: it does not say."""
  stats = [device.memory_stats() for device in devices]
  return max(s['peak_bytes_in_use'] for s in stats) if all(stats) else None


def with_efficiency(rows: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
  """Gives rows their 'efficiency': a device's speed over that of one alone."""
  done = [row for row in rows if 'error' not in row]
  for row in done if done and done[0]['devices'] == 1 else []:
    alone = done[0]['tokens_per_s_device']
    row['efficiency'] = row['tokens_per_s_device'] / alone
  return rows


def table(rows: Sequence[dict[str, Any]]) -> str:
  """The rows for people, with efficiency; '/ plan' is measured over planned."""
  lines = [
    'mesh     devices  tok/s/dev  effic.   step s  / plan  optim.   Muon'
    '  peak GiB compiled    plan  / plan'
  ]
  for row in with_efficiency(rows):
    name = f'{row["case"]:<8} {row["devices"]:7}'
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
  return '\n'.join(lines)


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


def _update_seconds(config, steps) -> dict[str, float]:
  """Medians of the whole update, and of that of Muon's matrices alone."""
  # New ones: where those of the steps are, no large array may fit between.
  params = jax.jit(lambda: state_lib.make_init(config)().params)()
  kinds = groups.label(params, optimizer=config.optim.name)
  init, update = updates.ours(config)
  cast = lambda params: params
  if config.plan.devices == config.optim.parts == 1:
    # No sum, which is float32: gradients stay in the type that they come in.
    cast = functools.partial(working.cast_experts, config.model)
  found = {}
  for name in ('optimizer_s', 'muon_s'):
    each = [updates.gradients(params, cast), jax.jit(init)(params), params]
    params = None  # They are updated in place: one set of them fits.
    options = step.compiler_options()
    program = updates.compile_update(update, *each, options=options)
    (found[name],) = updates.median_s([program], [each], steps)
    params = updates.only(each.pop(), kinds, 'muon')
  return found


def _plan(config) -> dict[str, Any]:
  """The plan's memory, time, collectives and share of Muon."""
  plan = planner.make(config)
  return {k: plan[k] for k in ('memory', 'time', 'collectives', 'muon')}


def _changed(config) -> list[str]:
  """The flags that are not those of the configuration of 8B parameters."""
  published = config_lib.Config.from_flagfile(cases.MODEL[0].partition('=')[2])
  return published.differences(config)


if __name__ == '__main__':
  main()
