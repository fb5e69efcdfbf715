# SPDX-License-Identifier: Apache-2.0
"""The settings of training data, and of preparing them."""

import dataclasses
import re
from typing import Any, Literal

from zaya_jax.config import fields

UsageError = fields.UsageError
field = fields.field

# Tokens of records that lie side by side (`pipelines.order`).
MOST_JOINED = 131_072


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataConfig(fields.Section, prefix='data.'):
  """Training data."""

  input: str = field(
    '',
    'Training text: a folder, a .txt, .jsonl, .json or .parquet file (.gz and '
    ".zst too), a glob of these, a URL, or 'stdlib' (Python's standard "
    'library).',
  )
  dir: tuple[str, ...] = field(
    (),
    'Folders of prepared shards, each DIR or DIR@WEIGHT; default: '
    'RUN_DIR/data, which is prepared from --data.input if it does not exist.',
  )
  text_field: str = field(
    'text',
    "Field or column with the text; a row without it may have 'messages'.",
  )
  tokenizer: str = field(
    'bytes',
    "'bytes', a Hugging Face tokenizer.json or its folder; with --restore, "
    'the default is the tokenizer from there.',
  )
  train_tokenizer: int = field(
    0,
    'Vocabulary size of a BPE tokenizer to train while preparing; 0: none.',
    minimum=0,
  )
  val_fraction: float = field(
    0.02,
    'Fraction of the documents held out for evaluation (of a single document, '
    'its tail).',
    minimum=0.0,
    maximum=0.9,
  )
  val_tokens: int = field(
    0,
    'Most tokens held out; documents above go to training. 0: any number.',
    minimum=0,
  )
  bad_rows: float = field(
    0.0,
    'Fraction of rows that may be unusable; they are left out and named.',
    minimum=0.0,
    maximum=1.0,
  )
  dedup: bool = field(
    True, 'Leaves out all but one of the documents with the same text.'
  )
  decontaminate: tuple[str, ...] = field(
    (),
    'Files, such as those of tests; documents that share 13 words in a row '
    'with them are left out.',
  )
  trim: bool = field(
    False,
    'Cuts the thoughts of a conversation that is longer than --data.seq_len, '
    'and leaves it out if its answers alone are.',
  )
  engine: Literal['auto', 'tokenizers', 'gigatoken'] = field(
    'auto',
    'Program that encodes; gigatoken is faster and gives the same ids, which '
    'is checked. auto: it, if it is installed and agrees.',
  )
  workers: int = field(1, 'Processes that prepare.', minimum=1)
  part: str = field(
    '',
    'I/N: does part I, from 0, of the N parts of preparing; the same command '
    'without it does what is left.',
  )
  verify: bool = field(
    False,
    'Compares the hashes of all shards, also of those that were compared '
    'before and have not been written since.',
  )
  copies_gb: float = field(
    0.0,
    'Gigabytes that copies of shards from URLs may take on a machine; those '
    'read longest ago make way, those being read do not. 0: what the disk has.',
    minimum=0.0,
  )
  record_tokens: int = field(32_768, 'Tokens per record of a shard.', minimum=2)
  shard_tokens: int = field(
    2**28, 'Approximate number of tokens per shard file.', minimum=1
  )
  seq_len: int = field(256, 'L: tokens per sequence.', minimum=2)
  batch_size: int = field(16, 'B: sequences per global batch.', minimum=1)
  mask_documents: bool = field(
    True,
    'A token sees only its own document; if not, all that stands before it in '
    'its sequence, as programs that do not mask documents have it.',
  )

  def _joins(self) -> bool:
    """Whether a sequence is several whole records of one group."""
    records, rest = divmod(self.seq_len, self.record_tokens)
    whole = rest == 0 and records & (records - 1) == 0
    return whole and self.seq_len <= MOST_JOINED

  def __post_init__(self) -> None:
    super().__post_init__()
    if self.record_tokens % self.seq_len and not self._joins():
      fit = [
        d for d in fields.divisors(self.record_tokens) if d <= self.seq_len
      ]
      raise UsageError(
        f'--data.seq_len={self.seq_len} does not divide '
        f'--data.record_tokens={self.record_tokens}; choose a divisor, for '
        f'example {fit[-1]}, or 2, 4, 8, … times this number, up to '
        f'{MOST_JOINED}.'
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

  @property
  def windows(self) -> dict[str, Any]:
    """What batches of training and of held-out text have in common."""
    names = ('seq_len', 'batch_size', 'mask_documents')
    return {name: getattr(self, name) for name in names}

  def part_of(self) -> tuple[int, int] | None:
    """Which part of preparing, of how many; None: all of it."""
    match = re.fullmatch(r'(\d+)/(\d+)', self.part)
    if match and int(match[1]) < int(match[2]):
      return int(match[1]), int(match[2])
    if self.part:
      raise UsageError(
        f'--data.part={self.part} must be I/N with I from 0 to N - 1, for '
        'example 0/8.'
      )
    return None
