# SPDX-License-Identifier: Apache-2.0
"""All settings of a run, from flags and to flags."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

from zaya_jax.config import aegis as aegis_lib
from zaya_jax.config import fields, flags, machine, modes, training
from zaya_jax.config import model as model_lib

field = fields.field

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
class Config(fields.Section, prefix=''):
  """Settings of the run."""

  mode: _MODES = field('train', 'What to run.')
  run_dir: str = field('', 'Run directory: everything that a run writes.')
  source: str = field(
    '',
    'Input of eval, generate, checkpoints, import, export, conform and '
    'report: a run directory, a checkpoint or a Hugging Face folder; default: '
    '--run_dir. report also takes several runs: A,B.',
  )
  output: str = field(
    '',
    'Output. prepare (default: --data.dir), import, export, conform and the '
    'reshape of checkpoints write a folder; plan a .json file, an .svg file '
    'or both (a.json,a.svg); bench a .json file; report an .html file.',
  )
  seed: int = field(
    0, 'Seed of weights, data order and samples.', minimum=0, maximum=2**32 - 1
  )
  num_steps: int = field(1000, 'Optimizer steps of the run.', minimum=0)
  resume: bool = field(True, 'Resumes from the newest checkpoint in --run_dir.')
  restore: str = field(
    '',
    'Starts a new run from the parameters of a run, a checkpoint or a Hugging '
    'Face folder, and takes from there each --model.* that is not given.',
  )
  prompt: str = field(
    '', 'Prompt of --mode=generate and of samples during training.'
  )
  drill: tuple[str, ...] = field(
    (),
    'For --mode=supervise: faults to inject into runs of a tiny model; all: '
    'every fault.',
  )
  serve: bool = field(
    False, 'For --mode=report: serves the page, on this machine only.'
  )
  model: model_lib.ModelConfig = model_lib.ModelConfig()
  data: training.DataConfig = training.DataConfig()
  optim: training.OptimConfig = training.OptimConfig()
  guard: training.GuardConfig = training.GuardConfig()
  mesh: machine.MeshConfig = machine.MeshConfig()
  distributed: machine.DistributedConfig = machine.DistributedConfig()
  checkpoint: training.CheckpointConfig = training.CheckpointConfig()
  eval: modes.EvalConfig = modes.EvalConfig()
  generate: modes.GenerateConfig = modes.GenerateConfig()
  export: modes.ExportConfig = modes.ExportConfig()
  ops: machine.OpsConfig = machine.OpsConfig()
  plan: machine.PlanConfig = machine.PlanConfig()
  bench: machine.BenchConfig = machine.BenchConfig()
  aegis: aegis_lib.AegisConfig = aegis_lib.AegisConfig()
  log: training.LogConfig = training.LogConfig()
  report: modes.ReportConfig = modes.ReportConfig()
  # The flags that were given, which tells a default from silence; no setting.
  given: frozenset[str] = dataclasses.field(
    default=frozenset(), compare=False, repr=False
  )

  def __post_init__(self) -> None:
    super().__post_init__()
    if self.data.batch_size % self.optim.parts:
      raise fields.UsageError(
        f'--optim.accumulation={self.optim.accumulation} does not divide '
        f'--data.batch_size={self.data.batch_size}; choose one of '
        f'{fields.divisors(self.data.batch_size)}.'
      )

  @classmethod
  def parse(cls, args: Sequence[str]) -> 'Config':
    """Reads a command line; of two settings of one flag the later one wins.

    Args:
      args: `--name=value` words, `--flagfile=PATH` among them.

    Raises:
      UsageError: in one sentence, for whatever is wrong with them.
    """
    return flags.parse(cls, args)

  @classmethod
  def from_flagfile(cls, path: str, **changes: Any) -> 'Config':
    """Reads a flagfile; `changes` are top-level fields to replace.

    Args:
      path: a file of `--name=value` lines, as `configs/quickstart.flags`.
      **changes: for example `run_dir='runs/mine'`.

    Raises:
      UsageError: if a line is not a known flag or a value breaks a rule.
    """
    read = cls.parse([f'--flagfile={path}'])
    return dataclasses.replace(read, **changes)

  def to_flagfile(self) -> str:
    """Writes every setting; `from_flagfile` gives an equal config again.

    What is left to `--restore` is not written.
    """
    return flags.to_flagfile(self, self.inherited if self.restore else ())

  @property
  def inherited(self) -> set[str]:
    """Flags that `--restore` decides: what nobody said of model and tokenizer.

    In Python nobody says which were given: those that are at their default.
    """
    found = {
      f'model.{f.name}'
      for f in dataclasses.fields(self.model)
      if f.name not in model_lib.OF_THE_RUN
      and getattr(self.model, f.name) == f.default
    }
    if self.data.tokenizer == training.DataConfig.tokenizer:
      found.add('data.tokenizer')
    return found - self.given

  def as_dict(self) -> dict[str, Any]:
    """Every setting, nested by section."""
    found = dataclasses.asdict(self)
    del found['given']
    return found

  def differences(self, later: 'Config', section: str = '') -> list[str]:
    """Lists the flags that differ, as `--model.d_model: 256 -> 512`.

    Args:
      later: the newer settings.
      section: only flags of this section, for example 'model'; empty: all.
    """
    return flags.differences(self, later, section)
