# SPDX-License-Identifier: Apache-2.0
"""Batches of windows for training and evaluation.

The state of a loader is one integer, the next row of the run: rows given out so
far by all processes together. It holds at any batch size and number of
processes, as the order of training does (`pipelines.order`).
"""

import itertools
import os
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from pipelines import errors, manifest, mixture, order, pack, sources
from pipelines import tokenizer as tokenizer_lib

Batch = dict[str, np.ndarray]  # See `pack.model_inputs`.


class Loader:
  """Batches of the rows of an order, each array [B / shard_count, L].

  It ends with the stretches that are known; `state` must lie in one whose rows
  have its length.

  Attributes:
    manifests: of the folders that are read.
    order: of all rows of the run.
  """

  def __init__(
    self,
    parts: Sequence[sources.WindowSource],
    rows: order.Order,
    manifests: Sequence[manifest.Manifest],
    *,
    seq_len: int,
    batch_size: int,
    shard_index: int,
    shard_count: int,
  ):
    self.manifests, self.order = tuple(manifests), rows
    self._parts, self._seq_len = parts, seq_len
    self._batch_size = batch_size
    self._rows = order.rows(batch_size, shard_index, shard_count)
    self._next = 0

  def __iter__(self) -> 'Loader':
    return self

  def __next__(self) -> Batch:
    first = self._next
    end = first + self._batch_size
    if self.order.rows is not None and end > self.order.rows:
      raise StopIteration
    lengths = self.order.stretches[self.order.stretch(first)].seq_len
    if lengths != self._seq_len:
      raise ValueError(
        f'Row {first} has {lengths} tokens, not {self._seq_len}.'
      )
    places = self.order.places(
      range(first + self._rows.start, first + self._rows.stop)
    )
    windows = [
      self._parts[place.source].read(place.record, place.offset, self._seq_len)
      for place in places
    ]
    self._next += self._batch_size
    return pack.model_inputs(
      np.stack(windows),
      bos_id=self.manifests[0].bos_id,
      pad_id=self.manifests[0].pad_id,
    )

  def __enter__(self) -> 'Loader':
    return self

  def __exit__(self, *exc_info) -> None:
    self.close()

  @property
  def state(self) -> int:
    """The next row, over all processes; assign it to resume."""
    return self._next

  @state.setter
  def state(self, next_row: int) -> None:
    if next_row < 0:
      raise ValueError(f'The data state {next_row} is negative.')
    self._next = int(next_row)

  def epochs(self, rows: int) -> list[float]:
    """How often the first rows read each folder."""
    return self.order.epochs(rows)

  def close(self) -> None:
    """Stops reading and closes the files."""
    for part in self._parts:
      part.close()


def make_train_loader(
  dirs: Sequence[str],
  *,
  seq_len: int,
  batch_size: int,
  seed: int,
  stretches: Sequence[order.Stretch] = (),
  shard_index: int = 0,
  shard_count: int = 1,
) -> Loader:
  """Makes the loader of the train splits, each epoch in another order.

  Opening checks the sha256 of the shards; of several processes each checks its
  share of them.

  Args:
    dirs: folders of prepared shards, each 'DIR' or 'DIR@WEIGHT'.
    seq_len: L; divides the tokens of a record, or is those of several.
    batch_size: B of all processes together.
    seed: of the order.
    stretches: of the whole run, with weights of these folders; none: one
      without end, with the weights in `dirs`.
    shard_index: which process this is.
    shard_count: number of processes; divides B.

  Raises:
    DataError: naming the folder, shard or setting that is wrong.
  """
  _check_shards(batch_size, shard_count)
  mixed = mixture.parse(dirs)
  data = [
    manifest.verify(p.directory, part=shard_index, parts=shard_count)
    for p in mixed
  ]
  mixture.check_same_tokenizer(mixed, data)
  parts = [
    sources.WindowSource(p.directory, 'train', seq_len, d)
    for p, d in zip(mixed, data, strict=True)
  ]
  for part, folder in zip(parts, mixed, strict=True):
    if not len(part):
      raise errors.DataError(
        f'{folder.directory} has a single token to train on; give more text.'
      )
  whole = order.Stretch(None, seq_len, tuple(p.weight for p in mixed))
  rows = order.Order([p.extent for p in parts], stretches or [whole], seed)
  return Loader(
    parts,
    rows,
    data,
    seq_len=seq_len,
    batch_size=batch_size,
    shard_index=shard_index,
    shard_count=shard_count,
  )


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

  Raises:
    DataError: naming the folder, shard or setting that is wrong.
  """
  _check_shards(batch_size, shard_count)
  if data is None:
    data = manifest.verify(directory, part=shard_index, parts=shard_count)
  source = sources.WindowSource(directory, split, seq_len, data)
  windows = _in_order(source, seq_len, batch_size, shard_index, shard_count)
  return _batches(
    itertools.islice(windows, max_batches or None), data, source.close
  )


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
  return _batches(_in_order(windows, seq_len, batch_size, 0, 1), tokenizer)


def _batches(
  windows: Iterator[np.ndarray],
  ids: manifest.Manifest | tokenizer_lib.Tokenizer,
  close: Callable[[], None] = lambda: None,
) -> Iterator[Batch]:
  try:
    for batch in windows:
      yield pack.model_inputs(batch, bos_id=ids.bos_id, pad_id=ids.pad_id)
  finally:
    close()


def _check_shards(batch_size: int, shard_count: int) -> None:
  if batch_size % shard_count:
    raise errors.DataError(
      f'--data.batch_size={batch_size} must be a multiple of the '
      f'{shard_count} processes that read it.'
    )


def _in_order(
  windows: sources.WindowSource | Sequence[np.ndarray],
  seq_len: int,
  batch_size: int,
  shard_index: int,
  shard_count: int,
) -> Iterator[np.ndarray]:
  """Yields this process's rows of each batch, int32 [B / shards, L + 1]."""
  for start in range(0, len(windows), batch_size):
    rows = order.rows(batch_size, shard_index, shard_count)
    batch = np.full((len(rows), seq_len + 1), pack.NO_TOKEN, np.int32)
    for row, index in enumerate(range(start + rows.start, start + rows.stop)):
      if index < len(windows):
        batch[row] = windows[index]
    yield batch
