# SPDX-License-Identifier: Apache-2.0
"""--mode=data: what is in folders of shards, by file and length; some of it."""

import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from pipelines import pack, sources
from pipelines import tokenizer as tokenizer_lib
from pipelines.shards import copies, documents, manifest, mixture
from zaya_jax import config as config_lib
from zaya_jax.runtime import rows

_FILES = 20  # That are listed, the largest; the others are one row.
_SAMPLES = 3
_LETTERS = 200  # Of a sample.


def main(config: config_lib.Config) -> None:
  """Prints rows on stdout: JSON lines, or columns on a terminal.

  Raises:
    DataError: if a folder holds no shards, or damaged ones.
  """
  copies.keep_within(config.data.copies_gb)
  dirs = config.data.dir or (
    config.source or os.path.join(config.run_dir, 'data'),
  )
  table = rows.Rows(config.json)
  for row in contents(config, mixture.parse(dirs)):
    table.print(row)


def contents(
  config: config_lib.Config, parts: list[mixture.Part]
) -> Iterator[dict[str, Any]]:
  """Yields what is known of each split of each folder.

  Args:
    config: says how long a run would be, for `epochs`.
    parts: folders and their weights.

  Returns:
    A row for the split; then, unless the folder is of an older format, one for
    each of the largest files, for each length of documents, and for samples.
  """
  weights = sum(part.weight for part in parts)
  steps = config.num_steps * config.data.batch_size * config.data.seq_len
  for part in parts:
    data = manifest.load(part.directory)
    for name, split in data.splits.items():
      where = {'folder': part.directory, 'split': name}
      row = {
        **where,
        'documents': split.documents,
        'tokens': split.tokens,
        'bytes': split.bytes,
        'bytes_per_token': split.bytes_per_token,
        'records': split.records,
        'shards': len(split.shards),
      }
      if split.counted_tokens is not None:
        row['counted_tokens'] = split.counted_tokens
      if name == 'train':
        share = float(part.weight / weights)
        row['epochs'] = steps * share / split.tokens
      yield row
      listed = documents.Documents(part.directory, data, name)
      if listed.known:
        for each in _details(part.directory, data, name, listed):
          yield {**where, **each}
    for why, count in (data.left_out or {}).items():
      yield {'folder': part.directory, 'left_out': why, 'count': count}


def _details(
  directory: str,
  data: manifest.Manifest,
  name: str,
  listed: documents.Documents,
) -> Iterator[dict[str, Any]]:
  """Counts shard by shard, so that a large folder needs little memory."""
  split = data.splits[name]
  files = np.zeros((data.files.count, 2), np.int64)  # Documents and tokens.
  lengths = np.zeros((65, 2), np.int64)
  end = split.tokens
  for shard in reversed(range(len(split.shards))):
    found = listed.rows(shard)
    if not len(found):
      continue
    starts = found['start'].astype(np.int64)
    sizes = np.diff(starts, append=end)
    end = starts[0]
    powers = np.ceil(np.log2(np.maximum(sizes, 1))).astype(int)
    for table, key in ((files, found['file']), (lengths, powers)):
      np.add.at(table, key, np.stack([np.ones_like(sizes), sizes], 1))
  order = np.argsort(-files[:, 1], kind='stable')
  order = order[files[order, 0] > 0]
  names = listed.names
  for i in order[:_FILES]:
    yield _count('file', names[i], files[i], split)
  if len(order) > _FILES:
    rest = files[order[_FILES:]]
    label = f'{len(rest):,} others'
    yield _count('file', label, rest.sum(0), split)
  for power in np.flatnonzero(lengths[:, 0]):
    yield _count('length', f'up to {2**power:,}', lengths[power], split)
  yield from _samples(directory, data, name, listed)


def _count(
  key: str, label: str, counts: np.ndarray, split: manifest.Split
) -> dict[str, Any]:
  found, tokens = map(int, counts)
  share = tokens / split.tokens
  return {key: label, 'documents': found, 'tokens': tokens, 'share': share}


def _samples(
  directory: str,
  data: manifest.Manifest,
  name: str,
  listed: documents.Documents,
) -> Iterator[dict[str, Any]]:
  """The first documents: they lie in the order of hashes, which is random."""
  tokenizer = manifest.load_tokenizer(directory)
  total = data.splits[name].tokens
  # Of one more than are shown, to know where the last of them ends.
  found, reach = [], data.record_tokens
  while len(found) <= _SAMPLES and reach < 2 * total:
    found = listed.between(0, min(reach, total))
    reach *= 2
  source = sources.WindowSource(directory, name, data.record_tokens, data)
  try:
    for i, document in enumerate(found[:_SAMPLES]):
      last = found[i + 1].start if i + 1 < len(found) else total
      yield {
        'sample': document.place,
        'tokens': last - document.start,
        'text': _text(source, tokenizer, data, document.start, last),
      }
  finally:
    source.close()


def _text(
  source: sources.WindowSource,
  tokenizer: tokenizer_lib.Tokenizer,
  data: manifest.Manifest,
  start: int,
  stop: int,
) -> str:
  """The head of a document, as text."""
  record, offset = divmod(start, data.record_tokens)
  # No token is without a byte, so a few records at most are read.
  stop = min(stop, start + 4 * _LETTERS)
  windows = []
  for i in range(record, -(-stop // data.record_tokens)):
    windows.append(source.read(i, 0)[: data.record_tokens])
  tokens = np.concatenate(windows)[offset : offset + stop - start]
  ids = tokens[tokens >= 0] & (pack.EXCEPTION - 1)
  return tokenizer.decode(ids)[:_LETTERS]
