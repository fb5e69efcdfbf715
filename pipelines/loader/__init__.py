# SPDX-License-Identifier: Apache-2.0
"""Batches of windows for training and evaluation.

The state of a loader is one integer, the next row of the run: rows given out so
far by all processes together. It holds at any batch size and number of
processes, as the order of training does (`pipelines.order`).
"""

import functools
import itertools
from collections.abc import Generator, Sequence

import numpy as np

from pipelines import errors, order, pack, sources
from pipelines.loader import in_order
from pipelines.shards import manifest, mixture
from pipelines.sources import ahead, cache, stamp

Batch = in_order.Batch
eval_batches = in_order.eval_batches
text_batches = in_order.text_batches

_CACHE_BYTES = 2**28  # Of records: a small corpus stays in memory whole.
_SPAN = 1024  # Rows whose places are worked out together.
_ENDLESS = 2**48  # Rows.


class Loader:
  """Batches of the rows of an order, each array [B / shard_count, L].

  Threads read ahead. It ends with the stretches that are known; `state` must
  lie in one whose rows have its length.

  Attributes:
    directories: the folders that are read.
    manifests: of these.
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
    mask_documents: bool,
  ):
    self.directories = tuple(part.directory for part in parts)
    self.manifests, self.order = tuple(manifests), rows
    self._parts, self._seq_len = parts, seq_len
    self._batch_size, self._mask_documents = batch_size, mask_documents
    self._mine = order.rows(batch_size, shard_index, shard_count)
    self._pieces = ahead.pieces(self._mine)
    self._places = functools.lru_cache(4)(self._span)
    self._next = 0
    self._read_ahead: Generator[np.ndarray] | None = None

  def __iter__(self) -> 'Loader':
    return self

  def __next__(self) -> Batch:
    if self._read_ahead is None:
      self._read_ahead = self._begin(self._next)
    windows = list(itertools.islice(self._read_ahead, len(self._pieces)))
    if not windows:
      self._end(self._next)  # Or its rows have another length.
      raise StopIteration
    self._next += self._batch_size
    return pack.model_inputs(
      np.concatenate(windows),
      bos_id=self.manifests[0].bos_id,
      pad_id=self.manifests[0].pad_id,
      mask_documents=self._mask_documents,
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
    self._stop()
    self._next = int(next_row)

  def epochs(self, rows: int) -> list[float]:
    """How often the first rows read each folder."""
    return self.order.epochs(rows)

  def close(self) -> None:
    """Stops reading and closes the files."""
    self._stop()
    for part in self._parts:
      part.close()

  def _stop(self) -> None:
    if self._read_ahead is not None:
      self._read_ahead.close()
      self._read_ahead = None

  def _begin(self, row: int) -> Generator[np.ndarray]:
    """Reads this process's windows from `row` on, piece by piece."""
    end = self._end(row)
    batches = (end - row) // self._batch_size

    def piece(index: int) -> np.ndarray:
      batch, part = divmod(index, len(self._pieces))
      first = row + batch * self._batch_size
      return np.stack([self._window(first + i) for i in self._pieces[part]])

    return ahead.read(piece, batches * len(self._pieces))

  def _end(self, row: int) -> int:
    """The row after the last that can be read together with `row`."""
    known = self.order.rows
    if known is not None and row >= known:
      return row
    i, stretches = self.order.stretch(row), self.order.stretches
    if stretches[i].seq_len != self._seq_len:
      raise ValueError(
        f'Row {row} has {stretches[i].seq_len} tokens, not {self._seq_len}.'
      )
    while i < len(stretches) and stretches[i].seq_len == self._seq_len:
      i += 1
    if i == len(stretches) and known is None:
      return row + _ENDLESS
    return self.order.first(i)

  def _window(self, row: int) -> np.ndarray:
    span, i = divmod(row, _SPAN)
    place = self._places(span)[i]
    return self._parts[place.source].read(place.record, place.offset)

  def _span(self, span: int) -> list[order.Place]:
    """Places of `_SPAN` rows: a few cost nearly as much as a thousand."""
    first, known = span * _SPAN, self.order.rows
    last = first + _SPAN if known is None else min(first + _SPAN, known)
    return self.order.places(range(first, last))


def make_train_loader(
  dirs: Sequence[str | mixture.Part],
  *,
  seq_len: int,
  batch_size: int,
  seed: int,
  stretches: Sequence[order.Stretch] = (),
  manifests: Sequence[manifest.Manifest] = (),
  shard_index: int = 0,
  shard_count: int = 1,
  mask_documents: bool = True,
) -> Loader:
  """Makes the loader of the train splits, each epoch in another order.

  Args:
    dirs: folders of prepared shards: 'DIR', 'DIR@WEIGHT' or what is meant by
      it, which a folder with '@' in its name needs.
    seq_len: L; divides the tokens of a record, or is those of several.
    batch_size: B of all processes together.
    seed: of the order.
    stretches: of the whole run, with weights of these folders; none: one
      without end, with the weights in `dirs`.
    manifests: of the folders, whose files have been checked; none: they are
      checked now.
    shard_index: which process this is.
    shard_count: number of processes; divides B.
    mask_documents: of `pack.model_inputs`.

  Raises:
    DataError: naming the folder, shard or setting that is wrong.
  """
  in_order.check_shards(batch_size, shard_count)
  mixed = mixture.parse(dirs)
  data = manifests or [stamp.open_folder(p.directory) for p in mixed]
  mixture.check_same_tokenizer(mixed, data)
  whole = order.Stretch(None, seq_len, tuple(p.weight for p in mixed))
  stretches = stretches or [whole]
  kept = cache.Cache(_CACHE_BYTES)
  parts = []
  for i, (folder, about) in enumerate(zip(mixed, data, strict=True)):
    reads = any(s.weights[i] for s in stretches if s.seq_len == seq_len)
    # A window of what is not read now need not be as long.
    length = seq_len if reads else about.record_tokens
    part = sources.WindowSource(folder.directory, 'train', length, about, kept)
    if not len(part):
      raise errors.DataError(
        f'{folder.directory} has a single token to train on; give more text.'
      )
    parts.append(part)
  rows = order.Order([p.extent for p in parts], stretches, seed)
  return Loader(
    parts,
    rows,
    data,
    seq_len=seq_len,
    batch_size=batch_size,
    shard_index=shard_index,
    shard_count=shard_count,
    mask_documents=mask_documents,
  )
