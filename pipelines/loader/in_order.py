# SPDX-License-Identifier: Apache-2.0
"""Batches of all windows of a text, in order."""

import os
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from pipelines import errors, order, pack, sources
from pipelines import tokenizer as tokenizer_lib
from pipelines.shards import manifest
from pipelines.sources import ahead, stamp

Batch = dict[str, np.ndarray]  # See `pack.model_inputs`.


def eval_batches(
  directory: str | os.PathLike[str],
  *,
  split: str = 'val',
  seq_len: int,
  batch_size: int,
  shard_index: int = 0,
  shard_count: int = 1,
  max_batches: int = 0,
  data: manifest.Manifest | None = None,
  mask_documents: bool = True,
) -> Iterator[Batch]:
  """Gives all windows of a split in order; rows of weight 0 fill the last.

  Every token is a target once, except the first of a record.

  Args:
    directory: folder of prepared shards.
    split: 'val' or 'train'.
    seq_len: L; divides the tokens of a record.
    batch_size: B of all processes together.
    shard_index: which process this is.
    shard_count: number of processes; divides B.
    max_batches: stops early; 0: never.
    data: the manifest of `directory` where its shards have been verified; None:
      they are verified now.
    mask_documents: of `pack.model_inputs`.

  Raises:
    DataError: naming the folder, shard or setting that is wrong.
  """
  check_shards(batch_size, shard_count)
  if data is None:
    data = stamp.open_folder(directory)
  source = sources.WindowSource(directory, split, seq_len, data)
  batches = -(-len(source) // batch_size)
  mine = order.rows(batch_size, shard_index, shard_count)
  windows = ahead.read(
    lambda i: _in_order(source, i, seq_len, batch_size, mine),
    min(batches, max_batches or batches),
  )
  return _batches(windows, data, source.close, mask_documents)


def text_batches(
  text: str,
  tokenizer: tokenizer_lib.Tokenizer,
  *,
  seq_len: int,
  batch_size: int,
) -> Iterator[Batch]:
  """Gives the windows of one document like `eval_batches`.

  Raises:
    DataError: if `text` is empty.
  """
  if not text:
    raise errors.DataError('The text to evaluate is empty.')
  tokens = np.insert(tokenizer.encode(text), 0, tokenizer.bos_id)
  windows = [
    pack.window(tokens, i, seq_len)
    for i in range(pack.num_windows(len(tokens), seq_len))
  ]
  batches = range(-(-len(windows) // batch_size))
  mine = range(batch_size)
  return _batches(
    (_in_order(windows, i, seq_len, batch_size, mine) for i in batches),
    tokenizer,
  )


def _batches(
  windows: Iterator[np.ndarray],
  ids: manifest.Manifest | tokenizer_lib.Tokenizer,
  close: Callable[[], None] = lambda: None,
  mask_documents: bool = True,
) -> Iterator[Batch]:
  try:
    for batch in windows:
      yield pack.model_inputs(
        batch,
        bos_id=ids.bos_id,
        pad_id=ids.pad_id,
        mask_documents=mask_documents,
      )
  finally:
    close()


def _in_order(
  windows: sources.WindowSource | Sequence[np.ndarray],
  batch: int,
  seq_len: int,
  batch_size: int,
  mine: range,
) -> np.ndarray:
  """This process's rows of a batch of windows in order, int32 [n, L + 1]."""
  result = np.full((len(mine), seq_len + 1), pack.NO_TOKEN, np.int32)
  first = batch * batch_size + mine.start
  for row in range(min(len(mine), len(windows) - first)):
    result[row] = windows[first + row]
  return result


def check_shards(batch_size: int, shard_count: int) -> None:
  """Refuses a batch that the processes cannot share."""
  if batch_size % shard_count:
    raise errors.DataError(
      f'--data.batch_size={batch_size} must be a multiple of the '
      f'{shard_count} processes that read it.'
    )
