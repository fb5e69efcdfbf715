# SPDX-License-Identifier: Apache-2.0
"""The settings of training: its text, optimizer, checkpoints and logs."""

import dataclasses
from typing import Literal

from zaya_jax.config import fields

UsageError = fields.UsageError
field = fields.field


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataConfig:
  """Text in, batches out."""

  input: str = field(
    '',
    'Text to train on: a folder, a .txt, .jsonl, .jsonl.zst or .parquet '
    "file, a glob of these, or 'stdlib' (Python's own library).",
  )
  dir: tuple[str, ...] = field(
    (),
    'Folders of prepared shards, DIR or DIR@WEIGHT; empty: RUN_DIR/data, '
    'prepared from --data.input when it does not exist.',
  )
  text_field: str = field(
    'text',
    'Field or column that holds the text; a row without it may have '
    "'messages'.",
  )
  tokenizer: str = field(
    'bytes',
    "'bytes', a Hugging Face tokenizer.json, or its folder; with --restore, "
    'the tokenizer from there.',
  )
  train_tokenizer: int = field(
    0,
    'Trains a BPE tokenizer of this size while preparing; 0: none.',
    minimum=0,
  )
  val_fraction: float = field(
    0.02,
    'Share of documents held out (of a single document, its tail).',
    minimum=0.0,
    maximum=0.9,
  )
  record_tokens: int = field(
    32_768, 'Tokens bundled in one record of a shard.', minimum=2
  )
  shard_tokens: int = field(
    2**28, 'Tokens of one shard file, about.', minimum=1
  )
  seq_len: int = field(256, 'L: tokens of a training window.', minimum=2)
  batch_size: int = field(16, 'B: windows of a global batch.', minimum=1)

  def __post_init__(self) -> None:
    fields.check(self, 'data.')
    if self.record_tokens % self.seq_len:
      fit = [
        d for d in fields.divisors(self.record_tokens) if d <= self.seq_len
      ]
      raise UsageError(
        f'--data.seq_len={self.seq_len} does not divide '
        f'--data.record_tokens={self.record_tokens}; choose a divisor, for '
        f'example {fit[-1]}.'
      )
    if self.train_tokenizer and self.tokenizer != 'bytes':
      raise UsageError(
        f'--data.train_tokenizer={self.train_tokenizer} and '
        f'--data.tokenizer={self.tokenizer} exclude each other; drop one.'
      )
    if 0 < self.train_tokenizer < 259:
      raise UsageError(
        f'--data.train_tokenizer={self.train_tokenizer} must be at least '
        '259: 256 bytes and three special tokens.'
      )


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimConfig:
  """Muon for hidden matrices, AdamW for the rest, and the balancing bias."""

  name: Literal['muon', 'adamw'] = field(
    'muon', 'muon: Muon for hidden matrices, AdamW for the rest.'
  )
  lr: float = field(2e-3, 'Peak learning rate of both.', minimum=0.0)
  lr_final: float = field(2e-4, 'Learning rate of the last step.', minimum=0.0)
  schedule: Literal['cosine', 'wsd', 'constant'] = field(
    'cosine', 'Shape after warmup; wsd: warmup, stable, decay (linear).'
  )
  warmup_steps: int = field(20, 'Steps of linear warmup.', minimum=0)
  decay_steps: int = field(0, 'Length of the decay of wsd.', minimum=0)
  weight_decay: float = field(
    0.1, 'Decoupled weight decay of matrices.', minimum=0.0
  )
  clip_norm: float = field(
    1.0,
    'Global gradient norm above which gradients shrink; 0: never.',
    minimum=0.0,
  )
  momentum: float = field(0.95, 'Momentum of Muon.', minimum=0.0, maximum=1.0)
  nesterov: bool = field(True, 'Nesterov momentum in Muon.')
  newton_schulz_steps: int = field(
    5, 'Newton-Schulz iterations of Muon.', minimum=1
  )
  newton_schulz_coefficients: Literal['jordan', 'polar_express', 'you'] = field(
    'jordan',
    'Their polynomials: of the first Muon, the same in all; of Polar Express, '
    'the best for each; or those of Dion, made for five.',
  )
  newton_schulz_dtype: Literal['auto', 'float32', 'bfloat16', 'float16'] = (
    field(
      'auto',
      'Their type; auto: bfloat16 on accelerators, else float32. float16 is as '
      'fast as bfloat16 and more accurate.',
    )
  )
  newton_schulz_gram: bool = field(
    False,
    'Iterates on the Gram matrix where one side is twice the other: less work, '
    'a little less accurate.',
  )
  muon_split_gate_up: bool = field(
    False,
    "Orthogonalizes an expert's gate and up matrices apart instead of as "
    'one fused matrix.',
  )
  beta1: float = field(0.9, 'First moment of AdamW.', minimum=0.0, maximum=1.0)
  beta2: float = field(
    0.95, 'Second moment of AdamW.', minimum=0.0, maximum=1.0
  )
  adam_eps: float = field(1e-8, 'Epsilon of AdamW.', minimum=0.0)
  balance_lr: float = field(
    1e-3, 'Step of the balancing bias; 0: frozen.', minimum=0.0
  )
  accumulation: int = field(
    1,
    'Parts in which a global batch is computed, one after another.',
    minimum=1,
  )
  max_bad_steps: int = field(
    10,
    'Steps refused in a row, for NaN, Inf or a spike, after which training '
    'stops.',
    minimum=1,
  )

  def __post_init__(self) -> None:
    fields.check(self, 'optim.')
    if self.schedule == 'wsd' and not self.decay_steps:
      raise UsageError(
        f'--optim.schedule=wsd needs --optim.decay_steps={self.decay_steps} '
        'to be at least 1: the length of the decay.'
      )


@dataclasses.dataclass(frozen=True, kw_only=True)
class GuardConfig:
  """Steps and devices that cannot be trusted."""

  spike_limit: float = field(
    20.0,
    'Refuses a step whose loss or gradient norm is this many median absolute '
    'deviations above the median of the last 32 (a deviation counts as at '
    'least 0.1 nats, and half of the median norm); 0: refuses NaN and Inf '
    'alone.',
    minimum=0.0,
  )
  vote_every: int = field(
    50,
    'Steps between votes of the devices on what each holds a copy of, also '
    'held before each save; 0: none.',
    minimum=0,
  )

  def __post_init__(self) -> None:
    fields.check(self, 'guard.')


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
  """When a state is saved and how long it stays."""

  every: int = field(100, 'Steps between saves; 0: only the last.', minimum=0)
  keep: int = field(3, 'Newest checkpoints kept.', minimum=1)
  keep_every: int = field(
    0,
    'Also keeps every checkpoint of a multiple of this step; 0: none.',
    minimum=0,
  )
  timeout_s: int = field(
    300, 'Seconds after which an unfinished save is an error.', minimum=1
  )
  max_failed_saves: int = field(
    3, 'Failed saves in a row that end the run.', minimum=1
  )
  host_memory_gb: float = field(
    0.0,
    'Host memory for a save, per process; a larger part of the state is '
    'copied and written in stages while training waits. 0: no limit.',
    minimum=0.0,
  )
  seal_key_file: str = field(
    '',
    'File with a secret that seals are signed with; checkpoints that are not '
    'are refused.',
  )
  action: Literal['list', 'verify', 'seal', 'diff', 'reshape', 'prune'] = field(
    'list',
    'What --mode=checkpoints does: list; verify every file; seal what has no '
    'seal and is trusted; diff --source and --checkpoint.other; reshape '
    '--source for --checkpoint.ranks into --output; prune as a run would.',
  )
  other: str = field('', 'The second checkpoint of diff.')
  ranks: int = field(
    1, 'Devices that are to read the parts of a reshaped checkpoint.', minimum=1
  )
  fast: tuple[str, ...] = field(
    (),
    'Folders of each host, DIR@STEPS, that hold its part of a state and a '
    "neighbour's, every so many steps, the fastest first: "
    '/dev/shm/zaya@20,/local/zaya@200. {process} in DIR is the number of the '
    'process.',
  )

  def __post_init__(self) -> None:
    fields.check(self, 'checkpoint.')
    for tier in self.fast:
      folder, _, steps = tier.rpartition('@')
      if not folder or not steps.isdecimal() or not int(steps):
        raise UsageError(
          f'--checkpoint.fast={tier} must be DIR@STEPS with at least one step; '
          'for example /dev/shm/zaya@20.'
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class LogConfig:
  """What is written, and how often."""

  every: int = field(10, 'Steps between lines of metrics.', minimum=1)
  sample_every: int = field(
    1000, 'Steps between samples, and one after the last; 0: none.', minimum=0
  )
  tensorboard: bool = field(True, 'Writes TensorBoard events.')
  report: bool = field(True, 'Keeps report.html, the run on one page.')
  peak_tflops: float = field(
    0.0,
    'Peak TFLOP/s of a device, for MFU; 0: from a table of devices.',
    minimum=0.0,
  )

  def __post_init__(self) -> None:
    fields.check(self, 'log.')
