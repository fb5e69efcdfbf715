# SPDX-License-Identifier: Apache-2.0
"""What the ledger says of the data of a run, and the order of its rows again.

The lines that open a ledger hold all that decides which window is which row, so
that the rest can be checked without the settings of the run, and without shards
as long as no token is asked for.
"""

import dataclasses
import os
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from pipelines import order as order_lib
from pipelines import store
from zaya_jax import config as config_lib
from zaya_jax.config.recipe import segments
from zaya_jax.data import corpus as corpus_lib
from zaya_jax.data import past
from zaya_jax.data.ledger import book
from zaya_jax.runtime import processes, run_files


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
  """A folder of shards, as a line that opens a ledger says.

  Attributes:
    name: in the recipe; else that of the folder.
    directory: where it was; within the run directory, relative to that.
    manifest: its hash.
    tokens: of the train split.
    record_tokens: tokens of a full record.
  """

  name: str
  directory: str
  manifest: str
  tokens: int
  record_tokens: int


@dataclasses.dataclass(frozen=True)
class Reads:
  """What a run reads, from a line that opens its ledger.

  Attributes:
    sources: in the order of the counts in lines.
    phases: of each stretch.
    order: of all rows of the run.
  """

  sources: tuple[Source, ...]
  phases: tuple[str, ...]
  order: order_lib.Order

  @classmethod
  def parse(cls, line: Mapping[str, Any]) -> 'Reads':
    """Reads a line.

    Raises:
      KeyError, TypeError, ValueError, ArithmeticError: if it is none.
    """
    sources = tuple(Source(**one) for one in line['sources'])
    stretches = [
      order_lib.Stretch(x['rows'], x['seq_len'], _weights(x['weights']))
      for x in line['stretches']
    ]
    extents = [order_lib.Extent(s.tokens, s.record_tokens) for s in sources]
    order = order_lib.Order(extents, stretches, line['seed'])
    return cls(sources, tuple(x['phase'] for x in line['stretches']), order)


def of(config: config_lib.Config, corpus: corpus_lib.Corpus) -> book.Terms:
  """What is the same for all rows of this part of a run."""
  return book.Terms(
    phase=segments.current(config).phase, counts=corpus.loader.order.counts
  )


def reads(
  config: config_lib.Config, corpus: corpus_lib.Corpus
) -> dict[str, Any]:
  """Whose a ledger is, and of which data: what a line that opens it says."""
  order, data = corpus.loader.order, corpus.loader.manifests
  folders = corpus.directories
  found = segments.segments(config)
  if len(found) != len(order.stretches):  # Without a recipe there is one.
    found = (segments.current(config),) * len(order.stretches)
  sources = [
    Source(
      name=name,
      directory=_directory(config.run_dir, folder),
      manifest=one.sha256,
      tokens=extent.tokens,
      record_tokens=extent.record_tokens,
    )
    for name, folder, one, extent in zip(
      _names(config, folders), folders, data, order.extents, strict=True
    )
  ]
  stretches = [
    {
      'phase': segment.phase,
      'rows': stretch.rows,
      'seq_len': stretch.seq_len,
      'weights': list(map(str, past.shares(stretch.weights))),
    }
    for segment, stretch in zip(found, order.stretches, strict=True)
  ]
  return {
    'run': processes.first_says(lambda: run_files.run_id(config.run_dir)),
    'order': order_lib.VERSION,
    'seed': config.seed,
    'sources': list(map(dataclasses.asdict, sources)),
    'stretches': stretches,
  }


def past_of(
  opened: Mapping[str, Any], reads: Reads, row: int, named: bool
) -> list[Any]:
  """What decided the rows before this one, as a line that opens says.

  A source that has given none of them may have been prepared anew. A plain run
  has no phases, and may have become some of a recipe: they are not `named`.
  """
  counts = reads.order.counts(0, row)
  found: list[Any] = [opened['order'], opened['seed']]
  stretches = past.before(reads.order.stretches, row)
  for phase, stretch in zip(reads.phases, stretches, strict=False):
    read = [
      (share, number, extent if counts[number] else None)
      for number, (share, extent) in enumerate(
        zip(stretch.weights, reads.order.extents, strict=True)
      )
      if share
    ]
    what = [phase if named else '', stretch.seq_len, read]
    if not named and found[2:] and found[-1][1:] == what:
      found[-1][0] += stretch.rows
    else:
      found.append([stretch.rows, *what])
  return found


def _names(config, folders) -> list[str]:
  if course := segments.course(config):
    return [source.name for source in course.recipe.sources]
  names = [os.path.basename(os.path.abspath(folder)) for folder in folders]
  return [
    name if names.count(name) == 1 else folder
    for name, folder in zip(names, folders, strict=True)
  ]


def _directory(run_dir: str, folder: str) -> str:
  """A run may be copied with the data in it."""
  if store.is_url(folder):
    return folder
  near = os.path.relpath(folder, run_dir)
  return os.path.abspath(folder) if near.startswith(os.pardir) else near


def _weights(words) -> tuple[Fraction, ...]:
  return tuple(map(Fraction, words))
