# SPDX-License-Identifier: Apache-2.0
"""Training speed and memory on 1, 2 and 4 devices, beside the plan of it.

  python -m benchmarks.scaling [--devices=1,2,4 --meshes=zero1,expert] [--FLAG]
  python -m benchmarks.scaling --preset=medium --rows=64 --parts=1

A preset, by default eight layers of ZAYA1-8B at full width, on random tokens,
in the way that the trainer chooses. Weak scaling: each device computes the same
number of rows in every case (`--rows`, in `--parts` one after another);
efficiency is tokens per second of a device over those of one device. All flags
of the trainer are understood behind those of this program.

The time of the optimizer alone is that of the jitted update with gradients
given where the step sums them, Muon's that of Muon's matrices alone. With
--trace the GPU's timeline says how much of the time of messages other kernels
run; beside it stands the share of their bytes that the contract of the compiled
program calls hidden.
"""

import argparse
import functools
import statistics
import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from benchmarks import cases, timeline, updates
from ops import dispatch
from zaya_jax import config as config_lib
from zaya_jax.model import working
from zaya_jax.optim import groups
from zaya_jax.optim import optimizer as optimizer_lib
from zaya_jax.parallel import batch as batch_lib
from zaya_jax.parallel import mesh as mesh_lib
from zaya_jax.plan import planner
from zaya_jax.plan.compile import hlo
from zaya_jax.train import state as state_lib
from zaya_jax.train import step
from zaya_jax.train import ways as ways_lib

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
  parser.add_argument(
    '--updates',
    action=argparse.BooleanOptionalAction,
    default=True,
    help='also time the optimizer alone',
  )
  parser.add_argument(
    '--trace', action='store_true', help='also read the timeline of messages'
  )
  args, more = parser.parse_known_args()
  if args.case:
    cases.run_one(
      args,
      lambda mesh, devices: measure(
        cases.make_config(mesh, devices, args, more),
        args.steps,
        preset=args.preset,
        with_updates=args.updates,
        with_trace=args.trace,
      ),
    )
    return
  names = [f'{args.meshes[0]}:1'] if 1 in args.devices else []
  names += [f'{m}:{n}' for n in args.devices if n > 1 for m in args.meshes]
  cases.run_all('benchmarks.scaling', names, args, table)


def measure(
  config: config_lib.Config,
  steps: int,
  *,
  preset: str = 'zaya1_8b',
  with_updates: bool = True,
  with_trace: bool = False,
) -> dict[str, Any]:
  """Trains some steps on the first --plan.devices devices.

  Args:
    config: of the run and of its plan.
    steps: how many are timed, after a few that are not.
    preset: what the row's flags are compared with.
    with_updates: whether the optimizer is timed alone, too.
    with_trace: whether two steps more are traced.

  Returns:
    One row: what was measured, and under 'plan' what was to be expected.
  """
  devices = jax.devices()[: config.plan.devices]
  mesh = mesh_lib.make_mesh(config.mesh, devices)
  notes: list[str] = []
  with jax.set_mesh(mesh), dispatch.use(**vars(config.ops)):
    ways = ways_lib.Ways(config, mesh)
    state = jax.jit(state_lib.make_init(config))()
    batch = random_batch(config, mesh)
    peaks = {'init': peak_bytes(devices)}
    started = time.perf_counter()
    compiled = ways.compile(make_step, config, (state, batch), notes.append)
    compile_s = time.perf_counter() - started
    config = ways.apply(config)
    peaks['compile'] = peak_bytes(devices)  # Trying kernels takes memory, too.
    state, losses, seconds, measured = _train(compiled, state, batch, steps)
    peak = peak_bytes(devices)  # Before the updates alone need more.
    network = {'predicted': _predicted(compiled)}
    if with_trace:
      traced = timeline.of(lambda: _train(compiled, state, batch, 0, 2))
      network |= _seen(traced)
    state = None  # Given away where it was traced; else the updates need room.
    alone = _updates_alone(config, steps if with_updates else 0)
  step_s = statistics.median(seconds)
  tokens = config.data.batch_size * config.data.seq_len
  return {
    'device': devices[0].device_kind,
    'flags': _changed(config, preset),
    'notes': [*ways.notes(), *notes, *dispatch.notes()],
    'tokens_per_step': tokens,
    'step_s': step_s,
    'step_s_all': seconds,
    'tokens_per_s_device': tokens / step_s / len(devices),
    **alone,
    'optimizer_share': alone['optimizer_s'] / step_s,
    'muon_share': alone['muon_s'] / step_s,
    'peak_bytes': peak,
    'peak_bytes_before': peaks,
    'compiled_bytes': cases.compiled_bytes(compiled),
    'compile_s': compile_s,
    'network': network,
    'losses': losses,
    'load_max': float(measured['moe/load_max']),
    'plan': _plan(config),
  }


def make_step(config: config_lib.Config) -> Any:
  """The jitted step of a run, its state donated."""
  optimizer = optimizer_lib.make_optimizer(config.optim, config.num_steps)
  return step.make_jitted(config, optimizer)


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
    '  peak GiB compiled    plan  / plan  sent GB   hidden  / seen'
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
      f'{peak / plan["memory"]["total"]:6.2f}  {_network(row["network"])}'
    )
  return '\n'.join(lines)


def _train(compiled, state, batch, steps, warm_up=_WARM_UP):
  """The state, losses and seconds of the timed steps, the last metrics."""
  losses, seconds = [], []
  for i in range(warm_up + steps):
    started = time.perf_counter()
    state, measured = jax.block_until_ready(compiled(state, batch))
    losses.append(float(measured['train/loss']))
    if i >= warm_up:
      seconds.append(time.perf_counter() - started)
  return state, losses, seconds, measured


def _network(found: dict[str, Any]) -> str:
  """What is sent, and the share that is hidden: by the program, as seen."""
  shares = [
    found[name].get('hidden_share') if name in found else None
    for name in ('predicted', 'seen')
  ]
  told = ['      -' if share is None else f'{share:7.1%}' for share in shares]
  return f'{found["predicted"]["bytes"] / 1e9:7.2f}  ' + ' '.join(told)


def _predicted(compiled) -> dict[str, Any]:
  """Bytes that a device sends in a step, and the share that is hidden."""
  found = hlo.read(compiled.as_text())
  sent = sum(kind['bytes'] for kind in found['collectives'].values())
  late = sum(found['exposed'].values())
  return {
    'bytes': sent,
    'hidden_share': 1 - late / sent if sent else None,
    'collectives': found['collectives'],
    'exposed': found['exposed'],
  }


def _seen(traced: dict[str, list[timeline.Span]]) -> dict[str, Any]:
  """The timelines of two steps: of the GPU whose messages hide least."""
  found = [timeline.network(spans) for spans in traced.values()]
  for row in found:
    row['hidden_share'] = (
      row['hidden_s'] / row['network_s'] if row['network_s'] else None
    )
  of_all = [row for row in found if row['network_s']]
  return {'seen': min(of_all, key=lambda row: row['hidden_share'], default={})}


def _updates_alone(config, steps) -> dict[str, Any]:
  """Seconds of the updates; NaN if no steps are timed, or there is no room."""
  unknown = {'optimizer_s': float('nan'), 'muon_s': float('nan')}
  if not steps:
    return unknown
  try:
    return _update_seconds(config, steps)
  except jax.errors.JaxRuntimeError as error:  # It may need more room.
    return unknown | {'update_error': str(error).splitlines()[0]}


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


def _changed(config, preset) -> list[str]:
  """The flags that are not those of the preset."""
  published = config_lib.Config.from_flagfile(cases.flagfile(preset))
  return published.differences(config)


if __name__ == '__main__':
  main()
