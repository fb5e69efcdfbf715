# SPDX-License-Identifier: Apache-2.0
"""--mode=plan: what a step would hold, send and cost, by formula."""

import json
import pathlib
import sys
from typing import Any

from zaya_jax import config as config_lib
from zaya_jax.model import flops as flops_lib
from zaya_jax.parallel import placement
from zaya_jax.plan import choices, phases
from zaya_jax.plan.compile import calls, contracts, rocm
from zaya_jax.plan.cost import (
  auto,
  division,
  estimate,
  lint,
  memory,
  network,
  newton_schulz,
  storage,
  timing,
)
from zaya_jax.plan.cost import collectives as collectives_lib
from zaya_jax.plan.cost import (
  machine as machine_lib,
)
from zaya_jax.plan.show import phases as phases_show
from zaya_jax.plan.show import picture, tables
from zaya_jax.runtime import chips as chips_lib
from zaya_jax.runtime import rows

_DAY = 86_400


def main(config: config_lib.Config) -> None:
  """Prints the plan of a run, and writes it to --output.

  Raises:
    UsageError: if devices, mesh and batch do not fit, --output ends in neither
      .json nor .svg, or there is no compiler for --plan.compile.
    CompileError: if the step does not compile.
  """
  config, compiles = config.in_steps(), config.plan.compile == 'rocm'
  as_json, draw = rows.is_json(config.json), picture.draw
  asked = any(getattr(config.plan, name) for name in choices.QUESTIONS)
  if config.dial and not asked:  # A search may find what makes it fit.
    auto.check_plan(config)
  if asked:
    plan, draw = choices.make(config), None
  elif config.recipe:
    plan = phases.make(config, make)
    if compiles:
      plan['compiled'] = {
        name: compile_step(kind, make(kind))
        for name, kind in phases.kinds(config).items()
      }
    _show(phases_show.show, plan, as_json)
    draw = phases_show.draw
  else:
    plan = make(config)
    if compiles:
      plan['compiled'] = compile_step(config, plan)
    _show(tables.show, plan, as_json)
  if wrote := _write(config.output, plan, draw):
    print(wrote, file=sys.stderr if as_json else sys.stdout)


def _show(show, plan, as_json) -> None:
  """The plan as tables, or whole in one line."""
  if as_json:
    print(json.dumps(plan))
  else:
    show(plan)


def _write(output, plan, draw) -> str:
  """The plan as JSON and as a picture, by the ends of paths."""
  outputs = [pathlib.Path(p) for p in output.split(',') if p]
  for path in outputs:
    svg = path.suffix == '.svg'
    text = draw(plan) if svg else json.dumps(plan, indent=2) + '\n'
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f'{path.name}.partial')
    partial.write_text(text, encoding='utf-8')
    partial.replace(path)
  return f'wrote {", ".join(map(str, outputs))}' if outputs else ''


def make(config: config_lib.Config) -> dict[str, Any]:
  """The plan as plain values, in bytes, FLOPs and seconds."""
  config = auto.of_plan(config)
  rates = machine_lib.rates_of(config)
  chip, layout = rates.chip, division.make(config)
  collectives = collectives_lib.plan(config, layout, chip, rates.machine)
  times = timing.plan(config, layout, rates, collectives)
  count = flops_lib.per_token(config.model, config.data.seq_len)
  saved = memory.checkpoint_bytes(config, layout)
  data = storage.reads(config, layout.step_tokens, rates.machine)
  found = []
  if config.plan.chip == 'mi300x':
    found = lint.check(config, layout, chip, collectives)
  return {
    'chip': {**vars(chip), 'rate': chip.rate},
    'machine': _machine(config, rates.machine),
    'mesh': layout.sizes,
    'devices': layout.devices,
    'tokens': {
      'step': layout.step_tokens,
      'device': layout.tokens,
      'parts': layout.parts,
    },
    'parameters': vars(flops_lib.parameters(config.model)),
    'flops_per_token': {**vars(count), 'total': count.total},
    'memory': _memory(config, layout, chip),
    'arrays': _arrays(config, layout),
    'collectives': [vars(c) for c in collectives],
    'muon': _muon(config, layout, count.total, times, collectives),
    'time': _time(config, layout, chip, count.total, times),
    'checkpoint': {
      'bytes': saved,
      'bytes_per_device': saved / layout.devices,
      'copy_s': storage.copy_s(rates.machine, saved / layout.devices),
    },
    'cache_bytes_per_token': memory.cache_bytes(config.model, chip.width),
    'data': {**data, 'iops': data['pages_per_step'] / times.step},
    'lint': [vars(f) for f in found],
    'assumptions': _assumptions(rates, config),
  }


def compile_step(
  config: config_lib.Config, plan: dict[str, Any]
) -> dict[str, Any]:
  """`rocm.compile_step`, beside the plan of `make`, and its contracts."""
  config = auto.of_plan(config)
  compiled = rocm.compile_step(config)
  chip = chips_lib.CHIPS[config.plan.chip]
  kept = contracts.check(config, division.make(config), chip, compiled)
  most = contracts.EXPOSED
  if config.mesh.context > 1:
    most = contracts.EXPOSED_CONTEXT
  kept.append(contracts.exposed(compiled, most))
  kept.append(calls.engines(compiled['engines']))
  return {
    **compiled,
    'compare': rocm.compare(plan, compiled),
    'contracts': [vars(f) for f in kept],
  }


def _machine(config, machine) -> dict[str, Any] | None:
  """What was measured, where, and when; None: nothing."""
  if machine is None:
    return None
  return {
    'file': config.machine or config.plan.chip,
    'name': machine.name,
    'sections': {name: s.date for name, s in machine.sections.items()},
  }


def _memory(config, layout, chip) -> dict[str, Any]:
  """Bytes of a device by kind, and the activations under each remat."""
  held = memory.plan(config, layout, chip.width)
  return {
    **vars(held),
    'optimizer_whole': memory.optimizer_bytes(config, layout)[1],
    'total': held.total,
    'capacity': chip.memory,
    'remat': config.model.remat,
    'activations_by_remat': {
      remat: memory.plan(config, layout, chip.width, remat).activations
      for remat in ('none', 'cheap', 'block')
    },
  }


def _arrays(config, layout) -> list[dict[str, Any]]:
  """Each parameter, and the mesh axes that divide its dimensions."""
  return [
    {
      'name': leaf.name,
      'shape': leaf.shape,
      'spec': placement.param_dims(leaf.name, leaf.shape, layout.sizes),
      'optimizer_spec': placement.part_dims(
        leaf.name, leaf.shape, layout.sizes
      ),
    }
    for leaf in division.leaves(config, layout)
  ]


def _muon(config, layout, model, times, collectives) -> dict[str, float]:
  """What Muon adds to a step."""
  stacks = newton_schulz.stacks(config, layout, division.leaves(config, layout))
  steps = config.optim.newton_schulz_steps
  whole = newton_schulz.flops(stacks, steps)
  seconds = sum(c.seconds for c in collectives if c.what == 'Muon')
  seconds += sum(p.seconds for p in times.update if p.name == 'Newton-Schulz')
  return {
    'matrices': sum(stack.count for stack in stacks),
    'flops': whole,
    'flops_symmetric': newton_schulz.flops(stacks, steps, symmetric=True),
    'flops_busiest_device': newton_schulz.busiest(stacks, steps),
    'share_of_flops': whole / (whole + model * layout.step_tokens),
    'share_of_time': seconds / times.step,
  }


def _time(config, layout, chip, model, times) -> dict[str, Any]:
  step, tokens = times.step, layout.step_tokens
  budget = config.plan.tokens or config.num_steps * tokens
  seconds = budget / tokens * step
  return {
    'parts': [vars(p) for p in times.parts],
    'update': [vars(p) for p in times.update],
    'network_exposed': times.exposed,
    'network_hidden': times.hidden,
    'step': step,
    'step_range': times.range,
    'tokens_per_second': tokens / step,
    'tokens_per_day': tokens / step * _DAY,
    'mfu': model * tokens / (step * layout.devices * chip.peak),
    'budget_tokens': budget,
    'budget_days': seconds / _DAY,
    'device_hours': seconds * layout.devices / 3600,
  }


def _assumptions(rates, config) -> list[str]:
  chip = rates.chip
  mesh = 'to each other device of its node' if chip.mesh else 'within its node'
  measured = ()
  if rates.machine:
    measured = (
      f'What was measured on {rates.machine.name} decides where there is '
      'something; its error is that of the measurement, and wider where sizes '
      "or numbers of devices differ. The data sheet's is "
      f'{estimate.SHEET_ERROR:.0%}. Errors of a step add up.',
    )
  return [
    *measured,
    f'By the data sheet products run at {chip.achievable:.0%} of '
    f'{chip.peak / 1e12:,.1f} TFLOP/s, memory at {chip.bandwidth / 1e12:,.2f} '
    f'TB/s; the whole at --plan.efficiency={config.plan.efficiency:g}.',
    f'By the data sheet a device sends {chip.link / 1e9:g} GB/s {mesh} '
    f'({chip.node} devices) and {chip.nic / 1e9:g} GB/s to other nodes; '
    f'{network.EFFICIENCY:.0%} of it is reached, and a group of n adds '
    f'{network.LATENCY * 1e6:g} us x log2 n.',
    'The gradients of a layer are reduced behind the backward pass, and with '
    'one part of a step what ZeRO-1 gathers for a layer behind the forward '
    'pass, as far as there is time; no other message is hidden.',
    'Experts are evenly loaded; attention counts the keys before a token, '
    'itself included (half of the window); what is computed anew counts in '
    'time, not in FLOPs per token.',
    'Parameters and optimizer states are divided among all devices (ZeRO-1), '
    'experts over expert, tokens over all; what is gathered for the forward '
    'pass stays for the backward pass, but for what fsdp divides.',
    f'Data: a window is a read of its whole record, compressed to '
    f'{storage.PACKED:.0%}, in pages of {storage.PAGE}; nothing is read from '
    'a cache.',
  ]
