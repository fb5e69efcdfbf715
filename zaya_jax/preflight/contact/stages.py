# SPDX-License-Identifier: Apache-2.0
"""The stages of a first contact: their commands, limits and what they prove.

Each command is a command line that a person could type; what it has written is
read by `verdicts`.
"""

import dataclasses
import pathlib
from collections.abc import Callable, Sequence

from ops import registry
from zaya_jax import config as config_lib
from zaya_jax.preflight.contact import child, verdicts
from zaya_jax.runtime import chips

_MAIN = ('-m', 'zaya_jax.main')
QUICKSTART = 'configs/quickstart.flags'
_START_S = 60.0  # For jax, and for what has begun when time is up.
_LONG = 30.0  # Minutes from which on there is time for all.
# One CPU device: what it computes, others are compared with.
_CPU = {'JAX_PLATFORMS': 'cpu', 'XLA_FLAGS': None}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command:
  """A command of a stage.

  Attributes:
    name: of its logs.
    words: after the interpreter.
    limit_s: after which it is ended.
    environment: variables that are other than here.
  """

  name: str
  words: tuple[str, ...]
  limit_s: float
  environment: dict[str, str | None] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stage:
  """A stage.

  Attributes:
    name: of the stage.
    about: what it does.
    commands: in their order.
    judge: what came of them, from the folder and how each has ended.
    share: of the time that it and all stages after it have.
    stops: whether nothing after it makes sense where it finds a fault.
  """

  name: str
  about: str
  commands: tuple[Command, ...]
  judge: Callable[[pathlib.Path, Sequence[child.Ended]], verdicts.Verdict]
  share: float = 1.0
  stops: bool = False


def before(config: config_lib.Config, root: pathlib.Path) -> list[Stage]:
  """The stages until the device is known.

  Args:
    config: of the command.
    root: folder of the first contact.
  """
  check = config.preflight
  node = (
    '--mode=preflight',
    f'--output={root}/preflight.json',
    f'--run_dir={root}',
    f'--preflight.devices={check.devices}',
    f'--preflight.ports={check.ports}',
  )
  return [
    Stage(
      name='preflight',
      about='whether the node is fit',
      commands=(Command(name='preflight', words=_MAIN + node, limit_s=150),),
      judge=verdicts.preflight,
      stops=True,
    ),
    Stage(
      name='device',
      about='what jax sees',
      commands=(
        Command(
          name='device',
          words=('-m', 'zaya_jax.preflight.contact.device'),
          limit_s=180,
        ),
      ),
      judge=verdicts.device,
      stops=True,
    ),
  ]


def after(
  config: config_lib.Config, root: pathlib.Path, device: dict
) -> list[Stage]:
  """The stages on a device.

  Args:
    config: of the command; its model is planned, and its products measured.
    root: folder of the first contact.
    device: what `device.look` found.
  """
  seconds = 60 * config.contact.minutes
  return [
    Stage(
      name='kernels',
      about='every engine against its meaning',
      commands=_of_each('check', root, device, 0.25 * seconds),
      judge=verdicts.kernels,
      share=0.35,
      stops=True,
    ),
    Stage(
      name='engines',
      about='how fast every engine is',
      commands=_of_each('time', root, device, 0.15 * seconds),
      judge=verdicts.engines,
      share=0.3,
    ),
    Stage(
      name='machine',
      about='memory, products, collectives, transfers, disk',
      commands=(_machine(root, device, 0.2 * seconds),),
      judge=verdicts.machine,
      share=0.55,
    ),
    Stage(
      name='plan',
      about='what the model needs and takes here',
      commands=(_plan(config, root, device),),
      judge=verdicts.plan,
      share=0.25,
    ),
    Stage(
      name='training',
      about='the quick start here and on a CPU',
      commands=_training(config, root, device),
      judge=verdicts.training,
    ),
  ]


def _of_each(kind, root, device, seconds) -> tuple[Command, ...]:
  """A command for each operation, so that a crash is that of one."""
  each = seconds / len(registry.FUNCTIONS)
  found = []
  for name in registry.FUNCTIONS:
    words = ['--mode=bench', f'--bench.op={name}']
    words += [f'--output={root}/{kind}_{name}.json']
    if kind == 'check':
      words += ['--bench.check', f'--bench.minutes={max(each, 1) / 60:.4f}']
    elif device['platform'] == 'cpu':  # Kernels are interpreted there.
      last = registry.operation(name).engines[-1].name
      words += [f'--ops.{name}={last}', '--bench.repeats=3']
      words += [f'--bench.case={_smallest(name)}']
    found.append(
      Command(
        name=f'{kind}_{name}',
        words=(*_MAIN, *words),
        limit_s=2 * each + _START_S,
      )
    )
  return tuple(found)


def _smallest(name: str) -> str:
  """The case of an operation with the fewest FLOPs."""
  small = [c for c in registry.operation(name).cases if not c.zaya]
  return min(small, key=lambda case: case.flops).name


def _machine(root, device, seconds) -> Command:
  words = [f'--flagfile={root}/flags', '--mode=bench', '--bench.op=machine']
  words += [f'--output={root}/machine.json', f'--run_dir={root}']
  words += [f'--bench.minutes={seconds / 6 / 60:.4f}']
  if device['platform'] == 'cpu':
    words += ['--bench.max_bytes=4194304', '--bench.dtype=float32']
  return Command(
    name='machine', words=(*_MAIN, *words), limit_s=1.5 * seconds + _START_S
  )


def _plan(config, root, device) -> Command:
  words = [f'--flagfile={root}/flags', '--mode=plan', '--nojson']
  words += [f'--plan.chip={_chip(device["chip"])}']
  words += [f'--plan.devices={device["devices"]}']
  words += [f'--output={root}/plan.json,{root}/plan.svg']
  if (root / 'machine.json').exists():
    words += [f'--machine={root}/machine.json']
  return Command(name='plan', words=(*_MAIN, *words), limit_s=120)


def _chip(kind: str) -> str:
  """The chip of `chips.CHIPS` that a device is of."""
  names = {key: chip.name for key, chip in chips.CHIPS.items()}
  return next((k for k, name in names.items() if name in kind.upper()), 'cpu')


def _training(config, root, device) -> tuple[Command, ...]:
  """The quick start on the device, then on one CPU, of the same shards."""
  steps = 50 if config.contact.minutes >= _LONG else 20
  count = device['devices']
  words = ['--mode=train', f'--flagfile={QUICKSTART}', f'--num_steps={steps}']
  words += ['--log.every=1', '--eval.every=0', '--eval.batches=8', '--prompt=']
  if 8 % count:  # Rows of the preset.
    words += [f'--data.batch_size={count}']
  here = [f'--run_dir={root}/training/device']
  cpu = [f'--run_dir={root}/training/cpu', '--data.input=']
  cpu += [f'--data.dir={root}/training/device/data']
  limit_s = 0.2 * 60 * config.contact.minutes + 2 * _START_S
  return (
    Command(
      name='training_device', words=(*_MAIN, *words, *here), limit_s=limit_s
    ),
    Command(
      name='training_cpu',
      words=(*_MAIN, *words, *cpu),
      limit_s=limit_s,
      environment=_CPU,
    ),
  )
