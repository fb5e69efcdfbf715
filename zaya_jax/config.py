# SPDX-License-Identifier: Apache-2.0
"""Every setting of a run: names, defaults, help texts and checks.

Frozen dataclasses are the single source. `zaya_jax.flags` turns each field into
one absl flag (`ModelConfig.d_model` is `--model.d_model`) and back. Nothing
here imports jax, so a wrong flag is reported before anything heavy is loaded.
"""

import dataclasses
from typing import Any, Literal

from zaya_jax import fields

UsageError = fields.UsageError
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
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig:
  """The network. Letters in the help texts are those of the source code."""

  num_layers: int = field(4, 'N: layers, each CCA then MoE.', minimum=1)
  d_model: int = field(256, 'D: width of the residual stream.', minimum=1)
  num_heads: int = field(4, 'H: query heads.', minimum=1)
  num_kv_heads: int = field(2, 'K: key/value heads; divides H.', minimum=1)
  head_dim: int = field(32, 'C: channels per head.', minimum=2)
  conv_depthwise: int = field(
    2, 'Taps of the depthwise convolution over queries and keys.', minimum=1
  )
  conv_grouped: int = field(
    2, 'Taps of the per-head convolution over queries and keys.', minimum=1
  )
  attention_bias: bool = field(
    False, 'Adds a bias to the projections of attention.'
  )
  num_experts: int = field(8, 'E: experts per layer, top-1.', minimum=1)
  d_expert: int = field(256, 'F: inner width of an expert.', minimum=1)
  d_router: int = field(64, 'R: width of the router.', minimum=1)
  skip: Literal['off', 'zero', 'identity'] = field(
    'zero',
    'The skip class of the router: absent, contributing nothing (as the '
    'released models are served), or passing p * h (as they were trained).',
  )
  vocab_size: int = field(
    320, 'V: rows of the embedding; at least the tokenizer.', minimum=2
  )
  tie_embeddings: bool = field(True, 'Uses the embedding as output head.')
  head_bias: bool = field(False, 'Adds a bias to the output head.')
  rope_theta: float = field(
    10_000.0,
    'Base of the rotary embedding: 1e4, 1e6, 5e6 by phase.',
    minimum=1.0,
  )
  rope_fraction: float = field(
    0.5, 'Share of each head that is rotated.', minimum=0.0, maximum=1.0
  )
  sliding_window: int = field(
    0,
    'Keys that a sliding layer sees, its own included; 0: none slides.',
    minimum=0,
  )
  sliding_layers: tuple[int, ...] = field(
    (), 'Indices of the layers with a sliding window.'
  )
  sliding_rope_theta: float = field(
    10_000.0, 'Base of the rotary embedding in sliding layers.', minimum=1.0
  )
  norm_eps: float = field(1e-5, 'Epsilon of every RMSNorm.', minimum=0.0)
  init_std: float = field(
    0.02, 'Standard deviation of the initial weights.', minimum=0.0
  )
  temperature_init: float = field(
    1.0,
    'Initial key temperature. At 0 (Hugging Face) queries and keys get no '
    'gradient in the first step.',
  )
  dtype: Literal['auto', 'float32', 'bfloat16'] = field(
    'auto', 'Compute type; auto: bfloat16 on accelerators, float32 on CPU.'
  )
  remat: Literal['none', 'block'] = field(
    'none', 'What the backward pass recomputes.'
  )

  def __post_init__(self) -> None:
    fields.check(self, 'model.')
    if self.num_heads % self.num_kv_heads:
      raise UsageError(
        f'--model.num_kv_heads={self.num_kv_heads} does not divide '
        f'--model.num_heads={self.num_heads}; choose one of '
        f'{fields.divisors(self.num_heads)}.'
      )
    if self.num_kv_heads * self.head_dim % 2:
      raise UsageError(
        f'--model.num_kv_heads={self.num_kv_heads} times '
        f'--model.head_dim={self.head_dim} must be even: half of the value '
        'channels come from the previous token.'
      )
    if self.d_rope % 2:
      raise UsageError(
        f'--model.rope_fraction={self.rope_fraction} rotates {self.d_rope} '
        f'of --model.head_dim={self.head_dim} channels; the count must be '
        'even.'
      )
    bad = [i for i in self.sliding_layers if not 0 <= i < self.num_layers]
    if bad:
      raise UsageError(
        f'--model.sliding_layers={",".join(map(str, bad))} must lie in '
        f'0..{self.num_layers - 1} (--model.num_layers={self.num_layers}).'
      )
    if bool(self.sliding_layers) != bool(self.sliding_window):
      raise UsageError(
        f'--model.sliding_window={self.sliding_window} and '
        f'--model.sliding_layers={",".join(map(str, self.sliding_layers))} '
        'go together; set both or neither.'
      )

  @property
  def num_classes(self) -> int:
    """Outputs of the router: the experts and, unless off, the skip class."""
    return self.num_experts + (self.skip != 'off')

  @property
  def d_rope(self) -> int:
    """Channels of a head that are rotated."""
    return int(self.head_dim * self.rope_fraction)

  @property
  def d_qk(self) -> int:
    """Channels that the convolutions mix: queries, then keys."""
    return (self.num_heads + self.num_kv_heads) * self.head_dim

  @property
  def conv_context(self) -> int:
    """Earlier tokens that both convolutions together look at."""
    return self.conv_depthwise - 1 + self.conv_grouped - 1


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
    'Steps in a row with NaN or Inf after which training stops.',
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
class MeshConfig:
  """How many devices each axis of the mesh has."""

  replica: int = field(
    0, 'Data-parallel copies; 0: all that is left.', minimum=0
  )
  fsdp: int = field(
    1,
    'Devices among which parameters are divided as well; replica times fsdp '
    'share a batch.',
    minimum=1,
  )
  context: int = field(
    1,
    'Devices among which decoding divides the tokens of its cache.',
    minimum=1,
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

  def __post_init__(self) -> None:
    fields.check(self, 'checkpoint.')


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
  text: str = field('', 'For --mode=eval: a text file to score.')
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class LogConfig:
  """What is written, and how often."""

  every: int = field(10, 'Steps between lines of metrics.', minimum=1)
  sample_every: int = field(
    0, 'Steps between samples; 0: only the last.', minimum=0
  )
  tensorboard: bool = field(True, 'Writes TensorBoard events.')
  peak_tflops: float = field(
    0.0,
    'Peak TFLOP/s of a device, for MFU; 0: from a table of devices.',
    minimum=0.0,
  )

  def __post_init__(self) -> None:
    fields.check(self, 'log.')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
  """One run."""

  mode: _MODES = field('train', 'What to do.')
  run_dir: str = field('', 'Folder of the run: all that it writes.')
  source: str = field(
    '',
    'What eval, generate, checkpoints, import, export and conform read: a '
    'run directory, one checkpoint, or a Hugging Face folder; empty: '
    '--run_dir.',
  )
  output: str = field(
    '',
    'Folder that prepare (empty: --data.dir), import, export and conform '
    'write, or the .json file of plan.',
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
  model: ModelConfig = dataclasses.field(default_factory=ModelConfig)
  data: DataConfig = dataclasses.field(default_factory=DataConfig)
  optim: OptimConfig = dataclasses.field(default_factory=OptimConfig)
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
  plan: PlanConfig = dataclasses.field(default_factory=PlanConfig)
  log: LogConfig = dataclasses.field(default_factory=LogConfig)

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
    from zaya_jax import flags  # Above this module; imports it.

    return dataclasses.replace(flags.parse_flagfile(path), **changes)
