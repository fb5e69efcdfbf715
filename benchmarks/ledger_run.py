# SPDX-License-Identifier: Apache-2.0
"""A run directory with shards, a ledger and a seal; no model was trained."""

import json
import pathlib
from fractions import Fraction

import numpy as np

from pipelines import loader as loader_lib
from pipelines import order, prepare
from pipelines.sources import stamp
from zaya_jax.checkpoint import folders, seal
from zaya_jax.data.ledger import book as book_lib
from zaya_jax.data.ledger import digest, opening, terms

# Rows, tokens of a row, weights, rows of a step; steps that are refused.
PHASES = (
  ('short', 40, 16, (1, 1), 4),
  ('long', 24, 32, (3, 1), 4),
  ('longer', 32, 64, (1, 3), 8),
)
REFUSED, LEFT_OUT = 7, 13  # After step 13 a batch is left out.


def make(run: pathlib.Path) -> None:
  """A run directory with shards, ledger and a sealed meta; without a model."""
  run.mkdir()
  for name, word in (('a', 'one'), ('b', 'two')):
    text = run / f'{name}.txt'
    text.write_text(''.join(f'{word} {n} is {n * n}.\n' for n in range(300)))
    prepare.prepare(
      str(text), run / name, record_tokens=64, shard_tokens=1500, val_fraction=0
    )
  stretches = [
    order.Stretch(rows, seq_len, tuple(map(Fraction, weights)))
    for _, rows, seq_len, weights, _ in PHASES
  ]
  known, row, step = None, 0, 0
  for phase, rows, seq_len, _, size in PHASES:
    loader = loader_lib.make_train_loader(
      [str(run / 'a'), str(run / 'b')],
      seq_len=seq_len,
      batch_size=size,
      seed=0,
      stretches=stretches,
    )
    with loader:
      loader.state = row
      book = opening.open_book(
        str(run),
        book_lib.Terms(phase=phase, counts=loader.order.counts),
        known=known,
        row=row,
        step=step,
        reads=_reads(loader),
        tell=lambda line: None,
      )
      end = row + rows
      while loader.state < end:
        if step == LEFT_OUT and row + rows > loader.state + size:
          left, loader.state = loader.state, loader.state + size
          book.leave_out(step, (left, loader.state))
        step += 1
        push(book, step, loader)
        if step % 4 == 0 or loader.state == end:
          known = book.head(write=True)
      row = end
  for name in 'ab':  # A stamp is no part of the data.
    (run / name / stamp.FILE_NAME).unlink(missing_ok=True)
  directory = run / 'checkpoints' / str(step)
  (directory / folders.META).mkdir(parents=True)
  about = {'arrays': {}, 'data_index': row, book_lib.META: known}
  (directory / folders.META / 'metadata').write_text(json.dumps(about))
  seal.write(str(directory), {'step': step})


def push(book: book_lib.Book, step: int, loader: loader_lib.Loader) -> None:
  """Takes a step as the program of a run would."""
  first = loader.state
  batch = next(loader)
  columns = np.arange(batch['tokens'].shape[1])
  *sums, numbers = digest.of_batch(batch, columns)
  rows = [x.sum(dtype=np.uint32) for x in digest.finish(*sums)]
  measured = {'optim/bad_steps': int(step == REFUSED)}
  book.push(step, (first, loader.state), np.array([*rows, *numbers]), measured)


def _reads(loader):
  sources = [
    terms.Source(
      name=name,
      directory=name,
      manifest=data.sha256,
      tokens=extent.tokens,
      record_tokens=extent.record_tokens,
    )
    for name, data, extent in zip(
      'ab', loader.manifests, loader.order.extents, strict=True
    )
  ]
  stretches = [
    {
      'phase': phase,
      'rows': rows,
      'seq_len': seq_len,
      'weights': list(map(str, weights)),
    }
    for phase, rows, seq_len, weights, _ in PHASES
  ]
  return {
    'run': '0' * 32,
    'order': order.VERSION,
    'seed': 0,
    'sources': [vars(source) for source in sources],
    'stretches': stretches,
  }
