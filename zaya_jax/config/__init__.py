# SPDX-License-Identifier: Apache-2.0
"""Every setting of a run: names, defaults, help texts and checks.

Frozen dataclasses are the single source. `zaya_jax.config.flags` turns each
field into one absl flag (`ModelConfig.d_model` is `--model.d_model`) and back.
Nothing here imports jax: a wrong flag is reported before anything heavy loads.
"""

import dataclasses
from typing import Any, Literal

from zaya_jax.config import aegis, fields, machine, model, report, training

UsageError = fields.UsageError
field = fields.field

ModelConfig = model.ModelConfig
DataConfig = training.DataConfig
OptimConfig = training.OptimConfig
GuardConfig = training.GuardConfig
CheckpointConfig = training.CheckpointConfig
LogConfig = training.LogConfig
ReportConfig = report.ReportConfig
MeshConfig = machine.MeshConfig
DistributedConfig = machine.DistributedConfig
PlanConfig = machine.PlanConfig
OpsConfig = machine.OpsConfig
BenchConfig = machine.BenchConfig
AegisConfig = aegis.AegisConfig

_MODES = Literal[
  'train',
  'prepare',
  'eval',
  'generate',
  'checkpoints',
  'import',
  'export',
  'conform',
  'plan',
  'bench',
  'supervise',
  'report',
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvalConfig:
  """Held-out loss."""

  every: int = field(
    100, 'Steps between evaluations; 0: only the last.', minimum=0
  )
  batches: int = field(
    0,
    'Batches of an evaluation during training; 0: the whole held-out set.',
    minimum=0,
  )
  text: str = field('', 'A text file: to score, or for --report.router.')
  tasks: tuple[str, ...] = field(
    (), 'For --mode=eval: tasks of lm-evaluation-harness (pip install lm-eval).'
  )
  task_dir: str = field('', 'Folder with task files (.yaml) of your own.')
  num_fewshot: int = field(
    -1,
    'Solved examples in front of each question; -1: as the task says.',
    minimum=-1,
  )
  limit: int = field(0, 'Questions of each task; 0: all.', minimum=0)

  def __post_init__(self) -> None:
    fields.check(self, 'eval.')


@dataclasses.dataclass(frozen=True, kw_only=True)
class GenerateConfig:
  """Sampling, by --mode=generate and during training."""

  # The state of decoding is allocated for all of them.
  max_tokens: int = field(200, 'Tokens to add.', minimum=1, maximum=2**20)
  temperature: float = field(0.8, '0: the likeliest token.', minimum=0.0)
  top_p: float = field(
    0.95,
    'Samples from the likeliest tokens of this total probability.',
    minimum=0.0,
    maximum=1.0,
  )

  stop: tuple[str, ...] = field((), 'Texts that end a continuation.')
  chat: bool = field(
    False, "Puts each prompt into the model's chat template, as the user's."
  )
  prompts: str = field(
    '',
    'File of prompts, continued together, one JSON object each on stdout: '
    '.jsonl with "prompt" or "messages", or any other file, one per line.',
  )

  def __post_init__(self) -> None:
    fields.check(self, 'generate.')


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportConfig:
  """The Hugging Face folder that --mode=export writes."""

  layout: Literal['native', 'legacy'] = field(
    'native',
    "native: of transformers' ZayaForCausalLM; legacy: of the first release, "
    'attention and experts as layers of their own.',
  )
  dtype: Literal['auto', 'float32', 'bfloat16'] = field(
    'auto', 'Type of the tensors; auto: as they are in the checkpoint.'
  )

  def __post_init__(self) -> None:
    fields.check(self, 'export.')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
  """One run."""

  mode: _MODES = field('train', 'What to do.')
  run_dir: str = field('', 'Folder of the run: all that it writes.')
  source: str = field(
    '',
    'What eval, generate, checkpoints, import, export, conform and report '
    'read: a run directory, one checkpoint, or a Hugging Face folder; empty: '
    '--run_dir. For report also several runs: A,B.',
  )
  output: str = field(
    '',
    'Folder that prepare (empty: --data.dir), import, export and conform '
    'write, the .json or .svg file of plan (or both: a.json,a.svg), the '
    '.json file of bench, or the .html file of report.',
  )
  seed: int = field(
    0,
    'Seed of weights, data order and samples.',
    minimum=0,
    maximum=2**32 - 1,
  )
  num_steps: int = field(1000, 'Optimizer steps of the run.', minimum=0)
  resume: bool = field(True, 'Goes on from the newest checkpoint in run_dir.')
  restore: str = field(
    '',
    'Starts a new run from the parameters of this run, checkpoint or Hugging '
    'Face folder, which also gives --model.* where it is at its default.',
  )
  prompt: str = field(
    '', 'Text to continue, by --mode=generate and during training.'
  )
  drill: tuple[str, ...] = field(
    (),
    'For --mode=supervise: faults to inject into runs of a tiny model, or all.',
  )
  serve: bool = field(
    False, 'For --mode=report: serves the page, to this machine alone.'
  )
  model: ModelConfig = dataclasses.field(default_factory=ModelConfig)
  data: DataConfig = dataclasses.field(default_factory=DataConfig)
  optim: OptimConfig = dataclasses.field(default_factory=OptimConfig)
  guard: GuardConfig = dataclasses.field(default_factory=GuardConfig)
  mesh: MeshConfig = dataclasses.field(default_factory=MeshConfig)
  distributed: DistributedConfig = dataclasses.field(
    default_factory=DistributedConfig
  )
  checkpoint: CheckpointConfig = dataclasses.field(
    default_factory=CheckpointConfig
  )
  eval: EvalConfig = dataclasses.field(default_factory=EvalConfig)
  generate: GenerateConfig = dataclasses.field(default_factory=GenerateConfig)
  export: ExportConfig = dataclasses.field(default_factory=ExportConfig)
  ops: OpsConfig = dataclasses.field(default_factory=OpsConfig)
  plan: PlanConfig = dataclasses.field(default_factory=PlanConfig)
  bench: BenchConfig = dataclasses.field(default_factory=BenchConfig)
  aegis: AegisConfig = dataclasses.field(default_factory=AegisConfig)
  log: LogConfig = dataclasses.field(default_factory=LogConfig)
  report: ReportConfig = dataclasses.field(default_factory=ReportConfig)

  def __post_init__(self) -> None:
    fields.check(self, '')
    if self.data.batch_size % self.optim.accumulation:
      raise UsageError(
        f'--optim.accumulation={self.optim.accumulation} does not divide '
        f'--data.batch_size={self.data.batch_size}; choose one of '
        f'{fields.divisors(self.data.batch_size)}.'
      )

  @classmethod
  def from_flagfile(cls, path: str, **changes: Any) -> 'Config':
    """Reads a flagfile; `changes` are top-level fields to replace.

    Args:
      path: a file of `--name=value` lines, as `configs/quickstart.flags`.
      **changes: for example `run_dir='runs/mine'`.

    Raises:
      ValueError: if a line is not a known flag or a value breaks a rule.
    """
    from zaya_jax.config import flags  # Above this module; imports it.

    return dataclasses.replace(flags.parse_flagfile(path), **changes)
