# SPDX-License-Identifier: Apache-2.0
"""How long it takes to check a ledger: its chain, and digests from shards.

    python -m benchmarks.data_ledger [--steps=1000000] [--megabytes=32]

CPU seconds of one process. The chain has a line for every thousand steps, as
with --checkpoint.every=1000. The shards are of bytes, in records of 32,768
tokens; a line is checked as --mode=ledger --ledger.verify=all does.
"""

import argparse
import json
import pathlib
import tempfile
import time
from fractions import Fraction

import numpy as np

from benchmarks import record
from pipelines import order, prepare
from pipelines.shards import manifest
from zaya_jax.data.ledger import chain, content, digest, story, terms

_EVERY = 1_000
_ROWS = 64  # Of a step.


def main() -> None:
  """Measures both, and keeps the result."""
  parser = argparse.ArgumentParser()
  parser.add_argument('--steps', type=int, default=1_000_000)
  parser.add_argument('--megabytes', type=int, default=32)
  name = pathlib.Path(__file__).stem
  parser.add_argument(
    '--output', type=pathlib.Path, default=record.RESULTS / f'{name}.json'
  )
  args = parser.parse_args()
  facts = record.circumstances(f'benchmarks.{name}', ('numpy', 'grain'))
  with tempfile.TemporaryDirectory() as folder:
    root = pathlib.Path(folder)
    data = _shards(root, args.megabytes)
    result = {
      'chain': chain_seconds(root, data, args.steps),
      'content': [
        content_speed(root, data, seq_len) for seq_len in (512, 4096, 32768)
      ],
    }
  print(json.dumps(result, indent=2))
  record.write(args.output, {**facts, **result})


def chain_seconds(
  root: pathlib.Path, data: manifest.Manifest, steps: int
) -> dict:
  """CPU seconds for the chain of so many steps, and the size of its file."""
  opening = _opening(data, 4096)
  lines, head = [chain.encode(opening, '')], ''
  rng = np.random.default_rng(0)
  for first in range(0, steps, _EVERY):
    sums = rng.integers(0, 2**32, (_EVERY, 2)).tolist()
    each = [digest.to_hex(*pair) for pair in sums]
    head = chain.link(lines[-1])
    rows = [first * _ROWS, (first + _EVERY) * _ROWS]
    row = {
      'rows': rows,
      'steps': [first, first + _EVERY],
      'phase': 'one',
      'outcome': 'trained',
      'sources': [rows[1] - rows[0]],
      'tokens': 0,
      'counted': 0,
      'digest': digest.add(each),
      'each': ''.join(each),
    }
    lines.append(chain.encode(row, head))
  path = root / chain.NAME
  path.write_bytes(b''.join(lines))
  began = time.process_time()
  told = story.read(str(root))
  seconds = time.process_time() - began
  assert told.now == steps * _ROWS
  path.unlink()
  size = sum(map(len, lines))
  return {'steps': steps, 'cpu_s': round(seconds, 3), 'file_bytes': size}


def content_speed(
  root: pathlib.Path, data: manifest.Manifest, seq_len: int
) -> dict:
  """Tokens a CPU second that are read, hashed and compared."""
  reads = terms.Reads.parse(_opening(data, seq_len))
  size = max(1, _ROWS * 512 // seq_len)
  steps = reads.order.extents[0].windows(seq_len) // size
  with content.Shards(str(root), reads) as shards:
    rows = np.arange(steps * size)
    found, numbers = shards.hashes(rows, seq_len)
    sums = found.reshape(steps, size, 2).sum(axis=1, dtype=np.uint64)
    each = [digest.to_hex(*pair) for pair in sums.tolist()]
    line = story.Line(
      number=2,
      rows=(0, len(rows)),
      steps=(0, steps),
      phase='one',
      outcome='trained',
      sources=(len(rows),),
      tokens=int(numbers[:, 0].sum()),
      counted=int(numbers[:, 1].sum()),
      each=tuple(each),
      reads=reads,
    )
  with content.Shards(str(root), reads) as shards:  # Nothing is in memory.
    began = time.process_time()
    places = content.check(shards, line, seen=content.Seen(reads))
    seconds = time.process_time() - began
  return {
    'seq_len': seq_len,
    'tokens': places,
    'm_tokens_per_s': round(places / seconds / 1e6, 1),
  }


def _shards(root, megabytes) -> manifest.Manifest:
  rng = np.random.default_rng(0)
  words = rng.integers(97, 123, (1 << 16, 6)).astype(np.uint8)
  words[:, 5] = 32
  with (root / 'text.txt').open('wb') as file:
    for _ in range(megabytes):
      file.write(words[rng.integers(0, len(words), 166_666)].tobytes())
  return prepare.prepare(
    str(root / 'text.txt'), root / 'data', val_fraction=0, shard_tokens=2**22
  )


def _opening(data, seq_len) -> dict:
  source = terms.Source(
    name='data',
    directory='data',
    manifest=data.sha256,
    tokens=data.splits['train'].tokens,
    record_tokens=data.record_tokens,
  )
  stretch = {'phase': 'one', 'rows': None, 'seq_len': seq_len}
  return {
    'ledger': chain.FORMAT,
    'row': 0,
    'step': 0,
    'run': '0' * 32,
    'order': order.VERSION,
    'seed': 0,
    'sources': [vars(source)],
    'stretches': [{**stretch, 'weights': [str(Fraction(1))]}],
  }


if __name__ == '__main__':
  main()
