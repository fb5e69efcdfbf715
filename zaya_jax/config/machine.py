# SPDX-License-Identifier: Apache-2.0
"""The settings of the devices: those of a run, and those of a plan."""

import dataclasses
from typing import Literal

from zaya_jax.config import fields

field = fields.field


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeshConfig(fields.Section, prefix='mesh.'):
  """Devices along each axis of the mesh."""

  replica: int = field(
    0, 'Data-parallel replicas; 0: all devices that are left.', minimum=0
  )
  fsdp: int = field(
    1,
    'Devices that also shard the parameters; replica x fsdp x expert devices '
    'share a batch.',
    minimum=1,
  )
  expert: int = field(
    1, 'Devices that shard the experts of each layer.', minimum=1
  )
  context: int = field(
    1,
    'Devices that shard the tokens of each sequence; with --mode=generate, '
    'those of the KV cache.',
    minimum=1,
  )
  context_mode: Literal['gather', 'ring'] = field(
    'gather',
    'Attention to keys on other devices. gather: all-gathers them; ring: '
    'passes them around, with two parts in memory at a time.',
  )
  bucket_mib: int = field(
    0,
    'MiB up to which XLA fuses messages of gradients and parameters on GPUs; '
    '0: the size that saturates the links of --machine, without it as XLA '
    'does.',
    minimum=0,
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class DistributedConfig(fields.Section, prefix='distributed.'):
  """How the processes of a training run connect, and timeouts."""

  coordinator: str = field(
    '', 'HOST:PORT of process 0; default: from the launcher.'
  )
  processes: int = field(
    0, 'Number of processes; 0: from the launcher, else one.', minimum=0
  )
  process: int = field(
    -1, 'Index of this process; -1: from the launcher.', minimum=-1
  )
  initialization_timeout_s: int = field(
    300, 'Seconds in which all processes must connect.', minimum=1
  )
  heartbeat_timeout_s: int = field(
    100, 'Seconds without a heartbeat after which all processes end.', minimum=2
  )
  collective_timeout_s: int = field(
    600, 'Seconds that devices wait for each other in a collective.', minimum=1
  )


# Engines that had another name.
_RENAMED = {'pallas': 'triton', 'mosaic': 'hopper'}


@dataclasses.dataclass(frozen=True, kw_only=True)
class OpsConfig:
  """Engine of each operation; auto: the fastest one for the device.

  A named engine that cannot run is an error. On a CPU, triton is interpreted
  and hip emulated: exact, and slow.
  """

  attention: Literal['auto', 'hopper', 'cudnn', 'triton', 'xla'] = field(
    'auto', 'Causal attention, forward and backward.'
  )
  cca: Literal['auto', 'hopper', 'triton', 'xla'] = field(
    'auto', 'CCA between its projections and attention.'
  )
  residual_rms_norm: Literal['auto', 'hip', 'triton', 'xla'] = field(
    'auto', 'Residual merge and the RMSNorm after it.'
  )
  router: Literal['auto', 'triton', 'xla'] = field(
    'auto', 'Router: from the tokens to the choice of each.'
  )
  experts: Literal['auto', 'hip', 'hopper', 'triton', 'ragged', 'xla'] = field(
    'auto', 'SwiGLU experts. ragged: grouped products of hipBLASLt, on ROCm.'
  )
  cross_entropy: Literal['auto', 'hopper', 'triton', 'xla'] = field(
    'auto', 'Output head and cross-entropy.'
  )
  newton_schulz: Literal['auto', 'hip', 'hopper', 'triton', 'xla'] = field(
    'auto', 'Orthogonalization of the updates of Muon.'
  )
  muon_momentum: Literal['auto', 'hip', 'xla'] = field(
    'auto', 'Momentum of Muon, of many matrices at once.'
  )

  def __post_init__(self) -> None:
    fields.check(self, 'ops.', renamed=_RENAMED)


# What --mode=bench measures of the machine itself, in this order.
MEASUREMENTS = (
  'collectives', 'memory', 'gemm', 'transfer', 'storage', 'peak', 'operations',
)  # fmt: skip


# Machines of which the program has measurements.
MACHINES = ('h100', 'h200', 'mi300x')


@dataclasses.dataclass(frozen=True, kw_only=True)
class BenchConfig(fields.Section, prefix='bench.'):
  """Benchmarks of operations and of the machine (--mode=bench)."""

  op: tuple[str, ...] = field(
    (),
    'Operations; default: all. Or, of the machine (docs/machine.md), '
    f'{", ".join(MEASUREMENTS)}; machine: these all.',
  )
  case: tuple[str, ...] = field(
    (),
    'Names of input cases; default: the shapes of ZAYA1-8B, on a CPU small '
    'ones. Of the machine, names in its tables; default: all.',
  )
  dtype: Literal['bfloat16', 'float32'] = field(
    'bfloat16', 'Dtype of matrices and activations.'
  )
  repeats: int = field(20, 'Timed calls; the median is reported.', minimum=1)
  check: bool = field(
    False,
    'Compares the results of every engine with their meaning instead of timing '
    'it, one JSON object a line; exit code 3 if one is wrong.',
  )
  minutes: float = field(
    2.0,
    'Minutes for each measurement of the machine, where the same command goes '
    'on with what is left in --output, and for each operation of '
    '--bench.check.',
    minimum=0.01,
  )
  max_bytes: int = field(
    2**30,
    'Largest message, array or file of the measurements of the machine, as far '
    'as the memory suffices.',
    minimum=2**12,
    maximum=2**32,
  )

  def __post_init__(self) -> None:
    super().__post_init__()
    of_machine = [op for op in self.op if op in (*MEASUREMENTS, 'machine')]
    others = [op for op in self.op if op not in of_machine]
    if of_machine and others:
      raise fields.UsageError(
        f'--bench.op={",".join(self.op)} names {of_machine[0]} of the machine '
        f'and the operation {others[0]}; measure one kind at a time.'
      )
    if of_machine and self.check:
      raise fields.UsageError(
        f'--bench.check compares operations, and --bench.op={of_machine[0]} is '
        'a measurement of the machine; name operations, or leave it away.'
      )

  @property
  def measurements(self) -> tuple[str, ...]:
    """What to measure of the machine; (): operations are timed instead."""
    if 'machine' in self.op:
      return MEASUREMENTS
    return tuple(name for name in MEASUREMENTS if name in self.op)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PreflightConfig(fields.Section, prefix='preflight.'):
  """What a node must have to be fit (--mode=preflight)."""

  devices: int = field(
    0, 'Number of GPUs that must be there; 0: not checked.', minimum=0
  )
  ports: int = field(
    0,
    'Number of RDMA ports that must be active; 0: all that are there.',
    minimum=0,
  )
  machine: str = field(
    '',
    'Result of --mode=bench --bench.op=machine on a good node of the same '
    f'kind, or {", ".join(MACHINES)}: short runs are compared with it.',
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ContactConfig(fields.Section, prefix='contact.'):
  """The first hour on a new machine (--mode=contact)."""

  minutes: float = field(
    60.0,
    'Minutes for all stages, divided among them; 5 are enough to try it on a '
    'CPU.',
    minimum=0.5,
  )
  go_on: bool = field(
    False,
    'Goes on with the next stage where the node is unfit or a kernel is wrong, '
    'to have all in one archive.',
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlanConfig(fields.Section, prefix='plan.'):
  """Machine that --mode=plan plans for; it need not be available."""

  chip: Literal['mi300x', 'h200', 'h100', 'cpu'] = field(
    'mi300x', 'Type of the devices.'
  )
  devices: int = field(
    8, 'Number of devices; the product of --mesh.*.', minimum=1
  )
  tokens: int = field(
    0, 'Tokens to train on; 0: those of --num_steps.', minimum=0
  )
  efficiency: float = field(
    1.0,
    'Fraction of the achievable speed of the device that a step reaches, as '
    'measured.',
    minimum=0.01,
    maximum=1.0,
  )
  compile: Literal['none', 'rocm'] = field(
    'none',
    'rocm: also compiles the step for MI300X and compares; takes minutes, '
    'needs no GPU (make rocm-venv).',
  )
  search: bool = field(
    False,
    'Finds the mesh, remat, parts and buckets that train fastest and fit; what '
    'is given is kept. With --plan.compile=rocm the best three are compiled.',
  )
  parameters: str = field(
    '',
    'Parameters that a model may have, as 8B: finds the width, heads, expert '
    'width and number of experts that train and decode fastest.',
  )
  latency_ms: float = field(
    0.0,
    'With --plan.parameters: milliseconds that a token may take to decode on '
    'one device; 0: any.',
    minimum=0.0,
  )
  hours: float = field(
    0.0,
    'Finds the --dial, its tokens and the loss to expect for so many hours on '
    'these devices; of a --dial that is given the tokens and the loss.',
    minimum=0.0,
  )
