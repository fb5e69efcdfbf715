# SPDX-License-Identifier: Apache-2.0
"""The data of a run: prepared if need be, checked, opened."""

import functools
import hashlib
import json
import os
from collections.abc import Iterator
from typing import Self

import numpy as np

from pipelines import loader as loader_lib
from pipelines import manifest as manifest_lib
from pipelines import tokenizer as tokenizer_lib
from zaya_jax import config as config_lib
from zaya_jax import prepare


class Corpus:
  """The training loader, the held-out text and the tokenizer of a run.

  Attributes:
    loader: endless iterator of training batches.
    tokenizer: of the shards.
    val: what is known of the held-out text of the first folder; None: it has
      none.
  """

  def __init__(self, config: config_lib.Config):
    """Prepares `--data.input` where the shards do not exist, and opens them.

    Raises:
      UsageError: if there is nothing to read, or the model's vocabulary is
        smaller than the tokenizer's.
      DataError: if the text or the shards cannot be used.
    """
    self._config = config
    dirs = config.data.dir or (os.path.join(config.run_dir, 'data'),)
    if config.data.input:
      prepare.shards(config.data, _folder(dirs[0]))
    elif not config.data.dir and not os.path.exists(dirs[0]):
      raise config_lib.UsageError(
        '--data.input= and --data.dir= are both empty; name a text to '
        "prepare ('stdlib' is on every machine) or prepared shards."
      )
    self._val_dir = _folder(dirs[0])
    self.tokenizer = _tokenizer(self._val_dir)
    _check_vocabulary(config, self.tokenizer)
    self.loader = loader_lib.make_train_loader(
      dirs,
      seq_len=config.data.seq_len,
      batch_size=config.data.batch_size,
      seed=config.seed,
    )
    self.val = self.loader.manifests[0].splits.get('val')

  def __enter__(self) -> Self:
    return self

  def __exit__(self, *unused) -> None:
    self.loader.close()

  @functools.cached_property
  def sha256(self) -> str:
    """Identifies the shards of all folders."""
    shards = [
      [shard.sha256 for split in m.splits.values() for shard in split.shards]
      for m in self.loader.manifests
    ]
    return hashlib.sha256(json.dumps(shards).encode()).hexdigest()

  def val_batches(
    self, max_batches: int = 0
  ) -> Iterator[dict[str, np.ndarray]]:
    """Held-out windows in order; 0: all of them."""
    data = self._config.data
    return loader_lib.eval_batches(
      self._val_dir,
      seq_len=data.seq_len,
      batch_size=data.batch_size,
      max_batches=max_batches,
      data=self.loader.manifests[0],
    )

  def check_tokenizer(self, sha256: str) -> None:
    """Refuses to go on with other tokens than those trained on.

    Raises:
      UsageError: if the tokenizer of the shards is another one.
    """
    if sha256 != self.tokenizer.sha256:
      raise config_lib.UsageError(
        f'{self._val_dir} was tokenized with {self.tokenizer.name} (sha256 '
        f'{self.tokenizer.sha256[:12]}) and the checkpoint in --run_dir='
        f'{self._config.run_dir} with another tokenizer ({sha256[:12]}); use '
        'the shards of that run, or another --run_dir.'
      )


def _folder(entry: str) -> str:
  """DIR of 'DIR' or 'DIR@WEIGHT'."""
  return entry.rpartition('@')[0] or entry


def _tokenizer(folder: str) -> tokenizer_lib.Tokenizer:
  path = os.path.join(folder, tokenizer_lib.FILE_NAME)
  found = manifest_lib.load(folder)
  return tokenizer_lib.load(path if os.path.exists(path) else found.tokenizer)


def _check_vocabulary(config, tokenizer) -> None:
  if config.model.vocab_size < tokenizer.vocab_size:
    raise config_lib.UsageError(
      f'--model.vocab_size={config.model.vocab_size} is smaller than the '
      f'{tokenizer.vocab_size} tokens of the tokenizer {tokenizer.name}; set '
      f'it to {-(-tokenizer.vocab_size // 64) * 64}.'
    )
