# SPDX-License-Identifier: Apache-2.0
"""All settings of a run, from flags and to flags."""

import dataclasses
from collections.abc import Container, Sequence
from typing import Any, Literal

from zaya_jax.config import aegis as aegis_lib
from zaya_jax.config import data as data_lib
from zaya_jax.config import fields, flags, modes, training
from zaya_jax.config import machine as machine_lib
from zaya_jax.config import model as model_lib
from zaya_jax.config.presets import dial as dial_lib

field = fields.field
_LENGTHS = ('tokens', 'epochs', 'hours')  # In place of --num_steps.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(fields.Section, prefix=''):
  """Settings of the run."""

  mode: modes.Mode = field('train', 'What to run.')
  run_dir: str = field('', 'Run directory: everything that a run writes.')
  source: str = field(
    '',
    'Input of eval, generate, chat, serve, checkpoints, import, export, '
    'conform, report and ledger: a run directory, a checkpoint or a Hugging '
    'Face folder; default: --run_dir. report also takes several runs: A,B.',
  )
  output: str = field(
    '',
    'Output. prepare (default: --data.dir), import, export, conform and the '
    'reshape of checkpoints write a folder; plan a .json file, an .svg file '
    'or both (a.json,a.svg); bench and preflight a .json file; report an .html '
    'file; ledger what a plain run was trained by, as a recipe (.toml) for '
    '--recipe.',
  )
  seed: int = field(
    0, 'Seed of weights, data order and samples.', minimum=0, maximum=2**32 - 1
  )
  dial: int = field(
    0,
    'Sizes a new model by one number, its layers: width, heads, experts, '
    'vocabulary, tokens, batch and learning rates follow (docs/dial.md), each '
    'unless it is given. 40 is the shape of ZAYA1-8B; 0: no dial.',
    minimum=0,
    maximum=dial_lib.MOST,
  )
  num_steps: int = field(1000, 'Optimizer steps of the run.', minimum=0)
  tokens: str = field(
    '', 'Tokens of the run, as 500000 or 50B, in place of --num_steps.'
  )
  epochs: float = field(
    0.0,
    'Epochs of the run, in place of --num_steps; of a mixture, until the '
    'folder that is read most often has been read so often.',
    minimum=0.0,
  )
  hours: float = field(
    0.0,
    'Hours of the run, in place of --num_steps: as many steps as fit at the '
    'speed of the first ones.',
    minimum=0.0,
  )
  recipe: str = field(
    '',
    'A .toml file with the phases of the run: their tokens, mixtures, batch '
    'sizes, learning rates and flags (docs/recipe.md); in place of '
    '--num_steps, --data.dir and the schedule of --optim.*.',
  )
  resume: bool = field(True, 'Resumes from the newest checkpoint in --run_dir.')
  restore: str = field(
    '',
    'Starts a new run from the parameters of a run, a checkpoint or a Hugging '
    'Face folder, and takes from there each --model.* that is not given.',
  )
  prompt: str = field(
    '', 'Prompt of --mode=generate and of samples during training.'
  )
  quant: Literal['none', 'int8', 'int4'] = field(
    'none',
    'Rounds matrices of a model that is read, in training of the base of an '
    'adapter. int8: a scale for each output; int4: for each 64 inputs.',
  )
  json: Literal['auto', 'true', 'false'] = field(
    'auto',
    'Prints results as JSON, one object a line, instead of tables; auto: where '
    'stdout is no terminal.',
  )
  drill: tuple[str, ...] = field(
    (),
    'For --mode=supervise: faults to inject into runs of a tiny model; all: '
    'every fault.',
  )
  serve: bool = field(
    False, 'For --mode=report: serves the page, on this machine only.'
  )
  machine: str = field(
    '',
    'What was measured on such a machine, for plan and training: a .json file '
    'of --mode=bench --bench.op=machine, or the shipped mi300x, h200 or h100; '
    'none: data sheets. Default: of --plan.chip for plan, none for training.',
  )
  model: model_lib.ModelConfig = model_lib.ModelConfig()
  data: data_lib.DataConfig = data_lib.DataConfig()
  optim: training.OptimConfig = training.OptimConfig()
  lora: model_lib.LoraConfig = model_lib.LoraConfig()
  dpo: model_lib.DpoConfig = model_lib.DpoConfig()
  guard: training.GuardConfig = training.GuardConfig()
  mesh: machine_lib.MeshConfig = machine_lib.MeshConfig()
  distributed: machine_lib.DistributedConfig = machine_lib.DistributedConfig()
  checkpoint: training.CheckpointConfig = training.CheckpointConfig()
  eval: modes.EvalConfig = modes.EvalConfig()
  generate: modes.GenerateConfig = modes.GenerateConfig()
  # Flags --serve.* and --quant.*: beside them are flags `serve` and `quant`.
  serving: modes.ServeConfig = modes.ServeConfig()
  export: modes.ExportConfig = modes.ExportConfig()
  quantization: modes.QuantConfig = modes.QuantConfig()
  ops: machine_lib.OpsConfig = machine_lib.OpsConfig()
  plan: machine_lib.PlanConfig = machine_lib.PlanConfig()
  bench: machine_lib.BenchConfig = machine_lib.BenchConfig()
  preflight: machine_lib.PreflightConfig = machine_lib.PreflightConfig()
  contact: machine_lib.ContactConfig = machine_lib.ContactConfig()
  aegis: aegis_lib.AegisConfig = aegis_lib.AegisConfig()
  log: modes.LogConfig = modes.LogConfig()
  report: modes.ReportConfig = modes.ReportConfig()
  ledger: modes.LedgerConfig = modes.LedgerConfig()
  # The recipe as it was read and the place in it (`segments`); no setting.
  course: Any = dataclasses.field(default=None, compare=False, repr=False)
  # The flags that were given, which tells a default from silence; no setting.
  given: frozenset[str] = dataclasses.field(
    default=frozenset(), compare=False, repr=False
  )

  def __post_init__(self) -> None:
    super().__post_init__()
    _check_length(self)
    if self.dial and 'dial' not in self.given:
      raise fields.UsageError(
        f'--dial={self.dial} is of the command line; here: Config.at_dial.'
      )
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
    return flags.parse(cls, args, _settle)

  @classmethod
  def from_flagfile(cls, path: str, **changes: Any) -> 'Config':
    """Reads a flagfile; `changes` are top-level fields to replace.

    Args:
      path: a file of `--name=value` lines, as `configs/quickstart.flags`.
      **changes: for example `run_dir='runs/mine'`.

    Raises:
      UsageError: as of `parse`.
    """
    return dataclasses.replace(cls.parse([f'--flagfile={path}']), **changes)

  def to_flagfile(self) -> str:
    """Writes every setting; `from_flagfile` gives an equal config again.

    What is left to `--restore` is not written. Of a segment of a recipe it is
    the run that is written.
    """
    if self.course and self.course.whole is not self:
      return self.course.whole.to_flagfile()
    return flags.to_flagfile(self, self.inherited if self.restore else ())

  def in_steps(self, epoch_tokens: float | None = None) -> 'Config':
    """The settings with `num_steps` in place of `tokens` and `epochs`.

    A length that is no whole number of steps is rounded up.

    Args:
      epoch_tokens: of an epoch; None: not known, epochs stay.
    """
    tokens = 0.0
    if self.tokens:
      tokens = fields.typed_count(self.tokens) or 0
    elif self.epochs and epoch_tokens:
      tokens = self.epochs * epoch_tokens
    if not tokens:
      return self
    steps = int(-(-tokens // (self.data.batch_size * self.data.seq_len)))
    return dataclasses.replace(self, num_steps=steps, tokens='', epochs=0.0)

  def at_dial(self, n: int, tokens: int | None = None) -> 'Config':
    """The settings with the dial at n; what was given stays as it is.

    `tokens` are those of the run, in place of the dial's.
    """
    given = {name: fields.value(self, name) for name in self.given}
    tokens = tokens or fields.typed_count(self.tokens)
    changes = dial_lib.settings(n, given, tokens)
    changes |= {'dial': n, 'given': self.given | {'dial'}}
    return fields.changed(self, changes)

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
    if self.data.tokenizer == data_lib.DataConfig.tokenizer:
      found.add('data.tokenizer')
    return found - self.given

  def as_dict(self) -> dict[str, Any]:
    """Every setting, nested by section."""
    found = dataclasses.asdict(dataclasses.replace(self, course=None))
    del found['given'], found['course']
    return found

  def differences(self, later: 'Config', section: str = '') -> list[str]:
    """Lists the flags that differ, as `--model.d_model: 256 -> 512`.

    Args:
      later: the newer settings.
      section: only flags of this section, for example 'model'; empty: all.
    """
    return flags.differences(self, later, section)


def _check_length(config: Config) -> None:
  """Refuses two lengths, and tokens that are no number."""
  both = ('recipe', *_LENGTHS)
  said = [f'--{n}={value}' for n in both if (value := getattr(config, n))]
  if len(said) > 1:
    raise fields.UsageError(
      f'{said[0]} and {said[1]} both say how long the run is; drop one.'
    )
  if config.tokens and not fields.typed_count(config.tokens):
    raise fields.UsageError(
      f'--tokens={config.tokens} must be a whole number above 0, or as 50B '
      '(k, M, B, T).'
    )


def _settle(values: Any, direct: Container[str]) -> None:
  """What is typed counts before the length that a flagfile says.

  Args:
    values: of absl's flags; lengths that do not count are reset.
    direct: names of the flags that stand on the command line itself.
  """
  says = lambda name: name == 'num_steps' or bool(values[name].value)  # 0, too.
  named = [name for name in dial_lib.LENGTHS if name in direct and says(name)]
  if named and values['recipe'].value:  # Perhaps of a flagfile.
    named = ['recipe', *(name for name in named if name != 'recipe')]
  if len(named) > 1:
    raise fields.UsageError(
      f'--{named[0]} and --{named[1]} both say how long the run is; drop one.'
    )
  for name in _LENGTHS:
    if named and name not in named:
      values[name].unparse()
  if 0 < (n := values['dial'].value) <= dial_lib.MOST:  # Else `Config` errs.
    _turn(values, n, 'dial' in direct)


def _turn(values: Any, n: int, is_typed: bool) -> None:
  """Sets what the dial says of the flags that were not given."""
  if values['restore'].value:
    raise fields.UsageError(
      f'--dial={n} sizes a new model, and --restore names one; drop either.'
    )
  given = {name: values[name].value for name in values if values[name].present}
  if min(given.get(name, 1) for name in dial_lib.SIZES) < 1:
    return  # `Config` says which.
  layers = given.get('model.num_layers')
  if is_typed and given.keys() >= {*dial_lib.SHAPE} and layers != n:
    raise fields.UsageError(
      f'--dial={n} has nothing to size: --model.num_layers={layers} and all '
      'else of the model are given; drop it, or --flagfile.'
    )
  tokens = fields.typed_count(values['tokens'].value)
  for name, value in dial_lib.settings(n, given, tokens).items():
    values[name].value = value
