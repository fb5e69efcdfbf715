# SPDX-License-Identifier: Apache-2.0
"""The settings of what shows a run, and of the modes that read one."""

import dataclasses
import re
from typing import Literal

from zaya_jax.config import fields

field = fields.field
# What --mode can be.
Mode = Literal[
  'train',
  'prepare',
  'data',
  'eval',
  'generate',
  'chat',
  'serve',
  'checkpoints',
  'import',
  'export',
  'conform',
  'plan',
  'bench',
  'preflight',
  'contact',
  'supervise',
  'report',
  'ledger',
  'rehearse',
]
# STEP:COUNT; the first step of a process does more than a step. A trace has all
# kernels: of more steps it fills the memory.
_MOST_TRACED = 99
_PROFILE = re.compile(r'(?!1:)[1-9]\d{0,11}:[1-9]\d?')


@dataclasses.dataclass(frozen=True, kw_only=True)
class LogConfig(fields.Section, prefix='log.'):
  """Logs, samples and pages of a run."""

  every: int = field(10, 'Steps between rows of metrics.', minimum=1)
  sample_every: int = field(
    1000,
    'Steps between samples, and one after the last step; 0: none.',
    minimum=0,
  )
  tensorboard: bool = field(True, 'Writes TensorBoard event files.')
  wandb: bool = field(
    False,
    'Sends rows and samples to Weights & Biases (pip install wandb); '
    'WANDB_PROJECT and WANDB_MODE=offline hold.',
  )
  mlflow: bool = field(
    False,
    'Sends rows and samples to MLflow (pip install mlflow); '
    'MLFLOW_TRACKING_URI holds, or mlflow.db in the present folder.',
  )
  metrics_port: int = field(
    0,
    'Port for GET /metrics of a training without a supervisor, for '
    'Prometheus, at --aegis.bind; 0: none.',
    minimum=0,
    maximum=65_535,
  )
  profile: str = field(
    '',
    'STEP:COUNT traces so many steps from this one on, for --mode=report and '
    'the profiler of JAX; 100:3 for example.',
  )
  report: bool = field(True, 'Writes report.html, the run on one page.')
  peak_tflops: float = field(
    0.0,
    'Peak TFLOP/s of a device, for MFU; 0: from the table of devices.',
    minimum=0.0,
  )

  def __post_init__(self) -> None:
    super().__post_init__()
    if self.profile and not _PROFILE.fullmatch(self.profile):
      raise fields.UsageError(
        f'--log.profile={self.profile} must be STEP:COUNT, with a step from 2 '
        f'on and 1 to {_MOST_TRACED} steps; for example 100:3.'
      )

  @property
  def profiled(self) -> range:
    """The steps to trace."""
    first, _, count = (self.profile or '0:0').partition(':')
    return range(int(first), int(first) + int(count))


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvalConfig(fields.Section, prefix='eval.'):
  """Evaluation."""

  every: int = field(
    100, 'Steps between evaluations; 0: only after the last.', minimum=0
  )
  batches: int = field(
    64,
    'Batches per evaluation during training, the first ones of each folder '
    'that holds text out; 0: all.',
    minimum=0,
  )
  text: str = field(
    '', 'Text file to score, or to inspect with --report.router.'
  )
  tasks: tuple[str, ...] = field(
    (), 'For --mode=eval: tasks of lm-evaluation-harness (pip install lm-eval).'
  )
  task_dir: str = field('', 'Folder with your own task files (.yaml).')
  num_fewshot: int = field(
    -1,
    'Solved examples before each question; -1: the default of the task.',
    minimum=-1,
  )
  limit: int = field(0, 'Questions per task; 0: all.', minimum=0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GenerateConfig(fields.Section, prefix='generate.'):
  """Sampling, by --mode=generate and during training."""

  # The state of decoding is allocated for all of them.
  max_tokens: int = field(
    200, 'Maximum number of new tokens.', minimum=1, maximum=2**20
  )
  temperature: float = field(
    0.8, 'Sampling temperature; 0: greedy.', minimum=0.0
  )
  top_p: float = field(
    0.95,
    'Nucleus sampling: samples from the likeliest tokens of this total '
    'probability.',
    minimum=0.0,
    maximum=1.0,
  )
  no_repeat: int = field(
    0,
    'No sequence of this many tokens comes twice, which keeps a small model '
    'from repeating itself; 0: any may.',
    minimum=0,
    maximum=64,
  )
  stop: tuple[str, ...] = field((), 'Strings that end a continuation.')
  chat: bool = field(
    False,
    "Applies the model's chat template to each prompt, as a message of the "
    'user.',
  )
  prompts: str = field(
    '',
    'File of prompts to continue in one batch: .jsonl with "prompt" or '
    '"messages", or any other file with one prompt per line. Prints one JSON '
    'object per prompt.',
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServeConfig(fields.Section, prefix='serve.'):
  """The server of --mode=serve."""

  host: str = field(
    '127.0.0.1',
    'Address to listen at; any but one of this machine alone needs a key.',
  )
  port: int = field(
    8000, 'Port to listen at; 0: any free port.', minimum=0, maximum=65535
  )
  name: str = field(
    '', 'Name of the model for clients; default: of the folder of --source.'
  )
  api_key_file: str = field(
    '',
    'File with the keys that clients may send (Authorization: Bearer KEY), one '
    'per line; or one key in the environment as ZAYA_API_KEY.',
  )
  slots: int = field(
    8, 'Texts that are continued at the same time.', minimum=1, maximum=1024
  )
  queue: int = field(
    64, 'Texts that may wait for a slot; more are refused (429).', minimum=0
  )
  context: int = field(
    4096,
    'Tokens of a prompt and its continuation together, at most: each slot has '
    'room for so many.',
    minimum=2,
    maximum=2**20,
  )
  prefixes: int = field(
    4,
    'Beginnings of prompts are kept, in the room of as many slots, for prompts '
    'that begin alike, such as the next turn of a conversation; 0: none.',
    minimum=0,
    maximum=1024,
  )
  drain_s: int = field(
    30,
    'Seconds that requests have to end after SIGTERM; more are cut off.',
    minimum=0,
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportConfig(fields.Section, prefix='export.'):
  """Hugging Face folder that --mode=export writes."""

  layout: Literal['native', 'legacy', 'peft'] = field(
    'native',
    "native: as transformers' ZayaForCausalLM; legacy: as the first release, "
    'with attention and experts in separate layers; peft: the adapter of a '
    'run with --lora.rank alone, as PEFT reads it beside a native folder.',
  )
  dtype: Literal['auto', 'float32', 'bfloat16'] = field(
    'auto', 'Dtype of the tensors; auto: as in the checkpoint.'
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuantConfig(fields.Section, prefix='quant.'):
  """Which matrices --quant rounds."""

  targets: tuple[str, ...] = field(
    ('experts', 'attention'),
    'What is rounded: experts, attention (its projections) and embedding, '
    'with the head that is tied to it, which gets 8 bits at the least.',
  )

  def __post_init__(self) -> None:
    super().__post_init__()
    known = ('experts', 'attention', 'embedding')
    wrong = [name for name in self.targets if name not in known]
    if wrong or not self.targets or len(set(self.targets)) < len(self.targets):
      raise fields.UsageError(
        f'--quant.targets={",".join(self.targets)} must name some of '
        f'{", ".join(known)}, each once.'
      )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReportConfig(fields.Section, prefix='report.'):
  """Pages of --mode=report."""

  router: bool = field(
    False, 'Inspects the router of one checkpoint, on --eval.text.'
  )
  tokens: int = field(
    8192, 'Maximum number of tokens of the text for the router.', minimum=2
  )
  port: int = field(
    8000, 'Port of --serve; 0: any free port.', minimum=0, maximum=65535
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class LedgerConfig(fields.Section, prefix='ledger.'):
  """What --mode=ledger shows of the data that a run was trained on."""

  step: int = field(
    0, 'Step whose documents are listed, by file and line; 0: none.', minimum=0
  )
  verify: Literal['chain', 'sample', 'all'] = field(
    'sample',
    'How much is proven. chain: that the lines are those that were written, '
    'and tell of each row once; sample: also that some steps were given what '
    'the shards hold; all: that every step was, and no window came twice in an '
    'epoch.',
  )
