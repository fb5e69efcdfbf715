# SPDX-License-Identifier: Apache-2.0
"""Which documents a step was given, by file and line."""

from collections.abc import Iterator
from typing import Any

from pipelines.shards import documents, manifest
from zaya_jax.data.ledger import chain, content, story


def of_step(
  told: story.Story, shards: content.Shards, step: int
) -> Iterator[dict[str, Any]]:
  """Yields a row for each document in each row of the data of a step.

  Args:
    told: the ledger.
    shards: of the run.
    step: from 1.

  Returns:
    row; outcome; source; epoch; shard and record in it, where the row begins,
    and the offset there; document, as FILE:LINE, and the hash of its text; of
    shards that know no documents neither.

  Raises:
    LedgerError: if the ledger does not tell of the step.
  """
  line = _line(told, step)
  first = line.rows[0] + line.batch_size * (step - line.steps[0] - 1)
  rows = range(first, first + line.batch_size)
  known = [
    documents.Documents(place, data, 'train')
    for place, data in zip(shards.directories, shards.manifests, strict=True)
  ]
  for row, place in zip(rows, line.reads.order.places(rows), strict=True):
    data = shards.manifests[place.source]
    shard, record = _shard(data, place.record)
    about = {
      'row': row,
      'outcome': line.outcome,
      'source': line.reads.sources[place.source].name,
      'epoch': place.epoch,
      'shard': shard,
      'record': record,
      'offset': place.offset,
    }
    start = place.record * data.record_tokens + place.offset
    found = known[place.source].between(start, start + place.tokens)
    for document in found:
      yield about | {
        'document': document.place,
        'text_hash': f'{document.hash:016x}',
      }
    if not found:
      yield about


def _line(told, step) -> story.Line:
  for line in told.lines:
    if line.steps[0] < step <= line.steps[1]:
      return line
  last = told.lines[-1].steps[1] if told.lines else told.first[1]
  raise chain.LedgerError(
    f'--ledger.step={step}: {told.path} tells of the steps '
    f'{told.first[1] + 1:,} to {last:,}; name one of them.',
    2,
  )


def _shard(data: manifest.Manifest, record: int) -> tuple[str, int]:
  """The shard of a record of the train split, and its number there."""
  for shard in data.splits['train'].shards:
    if record < shard.records:
      return shard.name, record
    record -= shard.records
  raise AssertionError('a place behind all shards')
