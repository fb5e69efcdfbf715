# SPDX-License-Identifier: Apache-2.0
"""The settings of the devices: those of a run, and those of a plan."""

import dataclasses
from typing import Literal

from zaya_jax.config import fields

field = fields.field


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeshConfig:
  """How many devices each axis of the mesh has."""

  replica: int = field(
    0, 'Data-parallel copies; 0: all that is left.', minimum=0
  )
  fsdp: int = field(
    1,
    'Devices among which parameters are divided as well; replica times fsdp '
    'times expert share a batch.',
    minimum=1,
  )
  expert: int = field(
    1,
    'Devices among which the experts of each layer are divided.',
    minimum=1,
  )
  context: int = field(
    1,
    'Devices among which the tokens of each row are divided, or with '
    '--mode=generate those of the cache.',
    minimum=1,
  )
  context_mode: Literal['gather', 'ring'] = field(
    'gather',
    'How attention meets keys of other devices: gather all of them, or pass '
    'them around in a ring, which holds two parts at a time.',
  )

  def __post_init__(self) -> None:
    fields.check(self, 'mesh.')


@dataclasses.dataclass(frozen=True, kw_only=True)
class DistributedConfig:
  """How the processes of one training run meet, and how long they wait."""

  coordinator: str = field(
    '', 'HOST:PORT of process 0; empty: as the launcher tells.'
  )
  processes: int = field(
    0, 'Number of processes; 0: as the launcher tells, else one.', minimum=0
  )
  process: int = field(
    -1, 'Which of them this is; -1: as the launcher tells.', minimum=-1
  )
  initialization_timeout_s: int = field(
    300, 'Seconds in which all processes must have started.', minimum=1
  )
  heartbeat_timeout_s: int = field(
    100, 'Seconds without a sign of life after which all end.', minimum=2
  )
  collective_timeout_s: int = field(
    600, 'Seconds that devices wait for each other.', minimum=1
  )

  def __post_init__(self) -> None:
    fields.check(self, 'distributed.')


# Engines that had another name.
_RENAMED = {'pallas': 'triton', 'mosaic': 'hopper'}


@dataclasses.dataclass(frozen=True, kw_only=True)
class OpsConfig:
  """The engine of each operation; auto: the fastest that is meant for it.

  A named engine that cannot run is an error. On a CPU, triton is interpreted
  and hip emulated: exact, and slow.
  """

  attention: Literal['auto', 'hopper', 'cudnn', 'triton', 'xla'] = field(
    'auto', 'Causal attention, forward and backward.'
  )
  cca: Literal['auto', 'hopper', 'triton', 'xla'] = field(
    'auto', 'What lies between the projections of CCA and its attention.'
  )
  residual_rms_norm: Literal['auto', 'hip', 'triton', 'xla'] = field(
    'auto', 'The merge into the residual stream and the norm after it.'
  )
  experts: Literal['auto', 'hip', 'hopper', 'triton', 'xla'] = field(
    'auto', 'The SwiGLU experts, each of its own tokens.'
  )
  cross_entropy: Literal['auto', 'hopper', 'triton', 'xla'] = field(
    'auto', 'The head and the loss.'
  )
  newton_schulz: Literal['auto', 'hip', 'hopper', 'triton', 'xla'] = field(
    'auto', 'Orthogonalizes the updates of Muon.'
  )
  muon_momentum: Literal['auto', 'hip', 'xla'] = field(
    'auto', 'Momentum of Muon, many matrices at a time.'
  )

  def __post_init__(self) -> None:
    fields.check(self, 'ops.', renamed=_RENAMED)


@dataclasses.dataclass(frozen=True, kw_only=True)
class BenchConfig:
  """What --mode=bench times."""

  op: tuple[str, ...] = field((), 'Operations; none: all.')
  case: tuple[str, ...] = field(
    (),
    'Names of their inputs; none: those of ZAYA1-8B, on a CPU small ones.',
  )
  dtype: Literal['bfloat16', 'float32'] = field(
    'bfloat16', 'Type of matrices and activations.'
  )
  repeats: int = field(
    20, 'Timed calls, of which the median counts.', minimum=1
  )

  def __post_init__(self) -> None:
    fields.check(self, 'bench.')


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlanConfig:
  """The machine of --mode=plan, which need not be there."""

  chip: Literal['mi300x', 'h200', 'h100', 'cpu'] = field(
    'mi300x', 'Kind of its devices.'
  )
  devices: int = field(8, 'How many; the product of --mesh.*.', minimum=1)
  tokens: int = field(
    0, 'Tokens to train on; 0: those of --num_steps.', minimum=0
  )
  efficiency: float = field(
    1.0,
    'Share of the achievable speed of the chip that a step reaches, as '
    'measured.',
    minimum=0.01,
    maximum=1.0,
  )
  compile: Literal['none', 'rocm'] = field(
    'none',
    'rocm: also compiles the step for MI300X and compares; minutes, no GPU '
    '(make rocm-venv).',
  )

  def __post_init__(self) -> None:
    fields.check(self, 'plan.')
