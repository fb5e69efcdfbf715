# SPDX-License-Identifier: Apache-2.0
"""What all programs of a race train on and are scored on: the same windows.

    python -m benchmarks.corpus --megabytes=500 --output=corpus
    python -m benchmarks.race_data --corpus=corpus --data=runs/race

Shards whose train split is the corpus and whose val split are its held-out
projects, so that the trainer evaluates on them as on any held-out text; for
programs in PyTorch the same windows as arrays. It takes minutes of CPU, so it
can be done before, and the folder `shards` carried to where the GPU is.
"""

import argparse
import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
import shutil
from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks import record
from pipelines import loader, prepare, sources
from pipelines.shards import manifest
from zaya_jax import config as config_lib

SHARDS = 'shards'
TRAIN, HELD_OUT = 'train.npy', 'held_out.npz'
_FACTS = 'facts.json'
_FILES = 16  # A worker prepares a file.


def make(
  corpus: pathlib.Path,
  folder: pathlib.Path,
  vocabulary: int,
  held_out_bytes: int,
) -> None:
  """Writes the shards of a corpus into a folder, unless they are there.

  Args:
    corpus: folder of `benchmarks.corpus`.
    folder: takes `shards`.
    vocabulary: of the tokenizer that is trained on the train split.
    held_out_bytes: whole documents are held out until they have as many.

  Raises:
    SystemExit: if the shards are not there and neither is the corpus.
  """
  shards = folder / SHARDS
  if (shards / _FACTS).exists():
    return
  if not (corpus / 'train.jsonl').exists():
    raise SystemExit(
      f'--corpus={corpus} holds no train.jsonl, and {shards} no shards; make '
      'the corpus: python -m benchmarks.corpus --megabytes=500 '
      f'--output={corpus}'
    )
  text = folder / 'text'
  shutil.rmtree(text, ignore_errors=True)
  lines = (corpus / 'train.jsonl').read_bytes().splitlines(keepends=True)
  for i in range(_FILES):
    _write(text / 'train' / f'{i:02d}.jsonl', lines[i::_FILES])
  lines = (corpus / 'held_out.jsonl').read_bytes().splitlines(keepends=True)
  _write(text / 'val' / '00.jsonl', _first(lines, held_out_bytes))
  workers = min(_FILES, os.cpu_count() or 1)
  how: dict[str, Any] = {'val_fraction': 0.0, 'workers': workers}
  prepare.prepare(
    f'{text}/train', text / 'a', train_tokenizer=vocabulary, **how
  )
  # Its own text alone is left out where it is equal; projects are disjoint.
  prepare.prepare(
    f'{text}/val', text / 'b', tokenizer=f'{text}/a/tokenizer.json', **how
  )
  _join(text / 'a', text / 'b')
  about = json.loads((corpus / 'manifest.json').read_text())
  (text / 'a' / _FACTS).write_text(json.dumps({'corpus': about}))
  shutil.rmtree(shards, ignore_errors=True)
  (text / 'a').rename(shards)
  shutil.rmtree(text)


def facts(folder: pathlib.Path) -> dict[str, Any]:
  """What results say of the data: the corpus, and the size of both splits."""
  shards = folder / SHARDS
  data = manifest.load(shards)
  return {
    **json.loads((shards / _FACTS).read_text()),
    # Not that of the manifest, which says where the corpus was, too.
    'shards_sha256': hashlib.sha256(
      json.dumps(sorted(manifest.hashes(data).items())).encode()
    ).hexdigest(),
    'train_tokens': data.splits['train'].tokens,
    'held_out_tokens': data.splits['val'].tokens,
    'held_out_bytes': data.splits['val'].bytes,
  }


def bytes_per_token(folder: pathlib.Path) -> float:
  """Of the held-out text."""
  return manifest.load(folder / SHARDS).splits['val'].bytes_per_token


def windows(
  folder: pathlib.Path, config: config_lib.Config
) -> tuple[pathlib.Path, pathlib.Path]:
  """The windows of both splits as arrays, made if they are not there.

  Args:
    folder: with the shards.
    config: its model's vocabulary, its windows and its batch.

  Returns:
    A .npy of the train split, [windows, L + 1], without those that a record
    cuts; a .npz of the held-out batches, `tokens`, `targets` and `weights` of
    [batches, B, L] each.
  """
  data, length = manifest.load(folder / SHARDS), config.data.seq_len
  name = f'{data.sha256[:12]}-{length}x{config.data.batch_size}'
  train, held_out = (folder / name / file for file in (TRAIN, HELD_OUT))
  if held_out.exists():
    return train, held_out
  train.parent.mkdir(exist_ok=True)
  size = config.model.vocab_size
  source = sources.WindowSource(folder / SHARDS, 'train', length, data)
  whole = [w for w in source if w.min() >= 0 and w.max() < size]
  with _replaced(train) as partial:
    np.save(partial, np.stack(whole).astype(np.dtype(data.dtype)))
  batches = loader.eval_batches(
    folder / SHARDS, seq_len=length, batch_size=config.data.batch_size
  )
  names = ('tokens', 'targets', 'weights')
  kept = [[batch[name] for name in names] for batch in batches]
  arrays = map(np.stack, zip(*kept, strict=True))
  with _replaced(held_out) as partial:
    np.savez(partial, **dict(zip(names, arrays, strict=True)))
  return train, held_out


@contextlib.contextmanager
def _replaced(path: pathlib.Path) -> Iterator[pathlib.Path]:
  """A file that takes its name when it is whole; others may write it, too."""
  partial = path.with_name(f'{os.getpid()}-{path.name}')
  yield partial
  partial.rename(path)


def _write(path: pathlib.Path, lines: list[bytes]) -> None:
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_bytes(b''.join(lines))


def _first(lines: list[bytes], most: int) -> list[bytes]:
  """The first documents, until they have so many bytes of text."""
  kept, size = [], 0
  for line in lines:
    if size >= most:
      break
    kept.append(line)
    size += len(json.loads(line)['text'].encode())
  return kept


def _join(train: pathlib.Path, val: pathlib.Path) -> None:
  """Makes the train split of `val` the val split of `train`."""
  data, held_out = manifest.load(train), manifest.load(val)
  shards = []
  for shard in held_out.splits['train'].shards:
    name = f'val-{shard.name}'
    (val / shard.name).rename(train / name)
    # The list of files that its documents point into is another.
    bare = {'documents': None, 'documents_sha256': None}
    shards.append(dataclasses.replace(shard, name=name, **bare))
  split = dataclasses.replace(held_out.splits['train'], shards=tuple(shards))
  both = {'train': data.splits['train'], 'val': split}
  manifest.write(dataclasses.replace(data, splits=both), train)


def main() -> None:
  """Prepares the data of a preset."""
  parser = argparse.ArgumentParser(
    allow_abbrev=False, description=(__doc__ or '').partition('\n')[0]
  )
  add_flags(parser)
  args, more = parser.parse_known_args()
  config = record.preset(args.preset, more)
  make(args.corpus, args.data, config.model.vocab_size, args.held_out_bytes)
  print(json.dumps(facts(args.data), indent=2))


def add_flags(parser: argparse.ArgumentParser) -> None:
  """Which data, for all programs that race."""
  parser.add_argument('--preset', default='small')
  parser.add_argument(
    '--corpus',
    type=_folder,
    default=record.OWN / 'corpus',
    help='of benchmarks.corpus; read once, to make --data',
  )
  parser.add_argument(
    '--data',
    type=_folder,
    default=record.OWN / 'race',
    help='folder of the prepared data, made if it holds none',
  )
  parser.add_argument(
    '--held_out_bytes', type=int, default=4_000_000, help='of the first texts'
  )


def _folder(text: str) -> pathlib.Path:
  return pathlib.Path(text).resolve()  # Programs run in the root.


if __name__ == '__main__':
  main()
