# SPDX-License-Identifier: Apache-2.0
"""The data of a run: prepared if need be, checked, opened."""

import functools
import hashlib
import json
import shutil
from collections.abc import Iterator, Sequence
from typing import Self

import numpy as np

from pipelines import loader as loader_lib
from pipelines import store
from pipelines import tokenizer as tokenizer_lib
from pipelines.shards import copies, mixture
from pipelines.shards import manifest as manifest_lib
from zaya_jax import config as config_lib
from zaya_jax.config.recipe import segments
from zaya_jax.data import held_out, opening, prepare, sources
from zaya_jax.runtime import processes

_OFTEN = 100  # Epochs that deserve a word.


class Corpus:
  """The training loader, the held-out text and the tokenizer of a run.

  Attributes:
    loader: endless iterator of training batches.
    tokenizer: of the shards.
    held_out: what is evaluated, folder by folder, at this length of rows.
    directories: of the shards.
    notes: what to tell the user.
  """

  def __init__(
    self, config: config_lib.Config, shard: tuple[int, int] = (0, 1)
  ):
    """Prepares `--data.input` where the shards do not exist, and opens them.

    Args:
      config: of the run.
      shard: which part of each batch to read, of how many.

    Raises:
      UsageError: if there is nothing to read, or the model's vocabulary is
        smaller than the tokenizer's.
      DataError: if the text or the shards cannot be used.
    """
    self._config = config
    copies.keep_within(config.data.copies_gb)
    self._windows = {
      **config.data.windows,
      'shard_index': shard[0],
      'shard_count': shard[1],
    }
    parts = sources.open_all(config)
    self.directories = [part.directory for part in parts]
    self._first = parts[0].directory
    # A folder that is named says what to read; a preset's text does not.
    self._is_made = bool(config.data.dir) and manifest_lib.exists(self._first)
    if config.data.input and not self._is_made:
      _check_planned_vocabulary(config, self._first)
      processes.first_says(
        lambda: bool(prepare.shards(config.data, self._first))
      )
    self.tokenizer = manifest_lib.load_tokenizer(self._first)
    if self._is_made or not config.data.input:
      _check_tokenizer_flag(config.data, self._first)
    _check_vocabulary(config, self.tokenizer.name, self.tokenizer.vocab_size)
    manifests, self.notes = opening.manifests(
      self.directories, verify=config.data.verify
    )
    _check_pairs(config, self.directories, manifests)
    self.loader = loader_lib.make_train_loader(
      parts,
      manifests=manifests,
      seed=config.seed,
      stretches=sources.stretches(config),
      **self._windows,
    )
    self._parts = parts
    whole = sources.of_the_whole(config, parts)
    found = held_out.find(whole, self.loader.manifests)
    weighed = [folder for folder in found if folder.weight]
    length = config.data.seq_len
    self.held_out = [folder for folder in weighed if folder.fits(length)]
    self.notes += [
      *self._not_read(),
      *_read_often(config, parts, self.loader),
      *_copied_often(config.data.copies_gb, self.loader),
      *_not_held_out(parts, found),
      *held_out.without_windows(weighed, length),
    ]

  def __enter__(self) -> Self:
    return self

  def __exit__(self, *unused) -> None:
    self.loader.close()

  @property
  def epoch_tokens(self) -> float:
    """Tokens until the folder that is repeated most often was read once."""
    total = sum(part.weight for part in self._parts)
    return min(
      float(data.splits['train'].tokens * total / part.weight)
      for part, data in zip(self._parts, self.loader.manifests, strict=True)
      if part.weight
    )

  @property
  def has_chats(self) -> bool:
    """Whether a part of the data are conversations."""
    return any(m.template_sha256 for m in self.loader.manifests)

  @functools.cached_property
  def sha256(self) -> str:
    """Identifies the shards of all folders."""
    shards = [
      [shard.sha256 for split in m.splits.values() for shard in split.shards]
      for m in self.loader.manifests
    ]
    return hashlib.sha256(json.dumps(shards).encode()).hexdigest()

  def val_batches(
    self, folder: held_out.HeldOut
  ) -> Iterator[dict[str, np.ndarray]]:
    """The first held-out windows, as many as `--eval.batches` says."""
    return folder.batches(
      max_batches=self._config.eval.batches, **self._windows
    )

  def _not_read(self) -> list[str]:
    """Says that text is not prepared, for there are shards."""
    if not (self._is_made and self._config.data.input):
      return []
    return [
      f'{self._first} is there (--data.dir), so --data.input='
      f'{self._config.data.input} is not read'
    ]

  def check_tokenizer(self, sha256: str) -> None:
    """Refuses to go on with other tokens than those trained on.

    Raises:
      UsageError: if the tokenizer of the shards is another one.
    """
    if sha256 != self.tokenizer.sha256:
      raise config_lib.UsageError(
        f'{self._first} was tokenized with {self.tokenizer.name} (sha256 '
        f'{self.tokenizer.sha256[:12]}) and the checkpoint in --run_dir='
        f'{self._config.run_dir} with another tokenizer ({sha256[:12]}); use '
        'the shards of that run, or another --run_dir.'
      )


def _check_pairs(
  config: config_lib.Config,
  directories: Sequence[str],
  manifests: Sequence[manifest_lib.Manifest],
) -> None:
  """Refuses pairs where texts are wanted, texts for pairs, and halves."""
  length = config.data.seq_len
  for directory, data in zip(directories, manifests, strict=True):
    if data.pairs and not config.dpo.beta:
      raise config_lib.UsageError(
        f'{directory} holds pairs of answers, chosen and rejected, and '
        '--dpo.beta=0 would learn both; set --dpo.beta=0.1, or name other data.'
      )
    if config.dpo.beta and not data.pairs:
      raise config_lib.UsageError(
        f'--dpo.beta={config.dpo.beta:g} learns from pairs of answers, and '
        f'{directory} has none; prepare rows that have chosen and rejected.'
      )
    if data.pairs and length % data.settings.window:
      raise config_lib.UsageError(
        f'--data.seq_len={length} would cut pairs of {directory} in two, which '
        f'lie in windows of {data.settings.window} tokens; use a multiple.'
      )


def _read_often(
  config: config_lib.Config,
  parts: Sequence[mixture.Part],
  loader: loader_lib.Loader,
) -> list[str]:
  """Says which folder has so little text that it is learnt by heart."""
  rows = segments.segments(config)[-1].stop_row
  return [
    f'{part.directory} has {data.splits["train"].tokens:,} tokens to train on, '
    f'and {config.num_steps:,} steps read them {times:,.0f} times'
    for part, data, times in zip(
      parts, loader.manifests, loader.epochs(rows), strict=True
    )
    if times >= _OFTEN
  ]


def _copied_often(room_gb: float, loader: loader_lib.Loader) -> list[str]:
  """Says that copies of shards will come and go."""
  sizes = [
    shard.bytes / 1e9
    for directory, data in zip(
      loader.directories, loader.manifests, strict=True
    )
    if store.is_url(directory)
    for shard in data.splits['train'].shards
  ]
  if not sizes:
    return []
  total, where = sum(sizes), f'--data.copies_gb={room_gb:g}'
  if not room_gb:
    disk = copies.root()
    room_gb = shutil.disk_usage(disk).total / 1e9
    where = f'the disk of {disk} {room_gb:.4g} GB'
  if total <= room_gb:
    return []
  return [
    f'shards behind URLs have {total:.4g} GB and {where}: '
    f'records come from all of them, so {1 - room_gb / total:.0%} of reads '
    f'copy a shard first, of {1000 * total / len(sizes):.3g} MB on average '
    '(--data.shard_tokens, when it was prepared)'
  ]


def _not_held_out(
  parts: Sequence[mixture.Part], found: Sequence[held_out.HeldOut]
) -> list[str]:
  """Says what cannot be evaluated."""
  scored = {folder.directory for folder in found}
  silent = [p.directory for p in parts if p.directory not in scored]
  if not silent:
    return []
  then = 'the other folders are evaluated' if scored else 'nothing is evaluated'
  return [
    f'no text is held out of {", ".join(silent)} (--data.val_fraction, when it '
    f'was prepared): {then}'
  ]


def _check_planned_vocabulary(config: config_lib.Config, folder: str) -> None:
  """Refuses too small a vocabulary before time is spent on preparing."""
  if manifest_lib.exists(folder):
    return
  name, size = config.data.tokenizer, config.data.train_tokenizer
  if size:
    _check_vocabulary(config, f'of --data.train_tokenizer={size}', size)
  else:
    _check_vocabulary(config, name, tokenizer_lib.load(name).vocab_size)


def _check_tokenizer_flag(data: config_lib.DataConfig, folder: str) -> None:
  """Refuses shards that were made with another tokenizer than is named."""
  # 'bytes' may be just the default.
  if data.tokenizer != 'bytes':
    named = tokenizer_lib.load(data.tokenizer)
    manifest_lib.read(folder).check_tokenizer(named)


def _check_vocabulary(config: config_lib.Config, name: str, size: int) -> None:
  if config.model.vocab_size < size:
    raise config_lib.UsageError(
      f'--model.vocab_size={config.model.vocab_size} is smaller than the '
      f'{size} tokens of the tokenizer {name}; set it to {-(-size // 64) * 64}.'
    )
