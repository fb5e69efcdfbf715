# SPDX-License-Identifier: Apache-2.0
"""The settings of the modes that read a finished run or model."""

import dataclasses
from typing import Literal

from zaya_jax.config import fields

field = fields.field


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
class ReportConfig:
  """What --mode=report shows, and where it serves it."""

  router: bool = field(
    False, 'Looks into the router of one checkpoint, on --eval.text.'
  )
  tokens: int = field(
    8192, 'Tokens of the text that its router reads, at most.', minimum=2
  )
  port: int = field(
    8000, 'Of --serve; 0: any that is free.', minimum=0, maximum=65535
  )

  def __post_init__(self) -> None:
    fields.check(self, 'report.')
