# SPDX-License-Identifier: Apache-2.0
"""Bits per byte of a held-out text after the same seconds, beside dense GPTs.

    python -m benchmarks.corpus --output=corpus
    python -m benchmarks.equal_time --corpus=corpus [--seconds=120] [--FLAG ...]

A preset as it is (`--preset=small`; flags of the trainer win) and GPTs in
PyTorch, compiled (`benchmarks/peers/dense_gpt.py`), each in a process of its
own, train on the same shards, with a cosine schedule that ends when their time
does: ours as `--hours` has it, which counts the start, the peers for as long as
ours then trained, with nothing counted before the first step. All are scored on
the same windows: whole projects that no one has trained on. Each peer is tried
with each of `--peer_lrs`; its best counts.
"""

import argparse
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
from typing import Any

import numpy as np

from benchmarks import record
from pipelines import loader, prepare, sources
from pipelines.shards import manifest
from zaya_jax import config as config_lib

_FILES = 16  # A worker prepares a file.


def main() -> None:
  """Runs all, prints a line each, and keeps the result."""
  args, more = _parser().parse_known_args()
  about = record.circumstances('benchmarks.equal_time', ('jax', 'jaxlib'))
  rows: list[dict[str, Any]] = []
  with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    config = config_lib.Config.parse(_flags(args, folder, more))
    _prepare(args.corpus / 'train.jsonl', config, folder)
    text, facts = held_out(args, config, folder)
    for seed in args.seeds:
      rows.append(_ours(args, folder, [*more, f'--seed={seed}'], text))
      rows[-1] |= {'seed': seed}
      _tell(args.output, {**about, **facts}, rows)
    trained = statistics.median(row['train_s'] for row in rows)
    for shape in args.peers.split(','):
      layers, width = map(int, shape.split('x'))
      for lr in args.peer_lrs.split(','):
        for seed in args.seeds:
          how = {
            'layers': layers,
            'width': width,
            'vocab': config.model.vocab_size,
            'length': config.data.seq_len,
            'rows': config.data.batch_size,
            'lr': float(lr),
            'seed': seed,
            'seconds': trained,
            'train': f'{folder}/train.npy',
            'held_out': f'{folder}/held_out.npz',
          }
          rows.append(_peer(how, facts['bytes']) | {'seed': seed})
          _tell(args.output, {**about, **facts}, rows)


def held_out(
  args: argparse.Namespace, config: config_lib.Config, folder: pathlib.Path
) -> tuple[pathlib.Path, dict[str, Any]]:
  """The held-out text as a file, and its windows beside it for the peers.

  Args:
    args: its corpus.
    config: window and batch.
    folder: with the shards in `data`; takes held_out.txt, held_out.npz and
      train.npy, the windows of both and of the train split.

  Returns:
    The text's path; its bytes, the tokens that count, and the corpus's hashes.
  """
  lines = (args.corpus / 'held_out.jsonl').read_text().splitlines()
  text = '\n\n'.join(json.loads(line)['text'] for line in lines)
  text = text.encode()[: args.held_out_bytes].decode(errors='ignore')
  path = folder / 'held_out.txt'
  path.write_text(text)
  data = manifest.load(folder / 'data')
  batches = loader.text_batches(
    text,
    manifest.load_tokenizer(folder / 'data'),
    seq_len=config.data.seq_len,
    batch_size=config.data.batch_size,
  )
  names = ('tokens', 'targets', 'weights')
  kept = [[batch[name] for name in names] for batch in batches]
  windows = dict(
    zip(names, map(np.stack, zip(*kept, strict=True)), strict=True)
  )
  np.savez(folder / 'held_out.npz', **windows)
  train = sources.WindowSource(
    folder / 'data', 'train', config.data.seq_len, data
  )
  kind = np.uint16 if config.model.vocab_size <= 2**16 else np.uint32
  # Where a record ends, the last token has no target.
  size = config.model.vocab_size
  full = [w for w in train if w.min() >= 0 and w.max() < size]
  np.save(folder / 'train.npy', np.stack(full).astype(kind))
  return path, {
    'corpus': json.loads((args.corpus / 'manifest.json').read_text()),
    'bytes': len(text.encode()),
    'tokens': int(windows['weights'].sum()),
    'train_tokens': len(full) * config.data.seq_len,
  }


def _flags(
  args: argparse.Namespace, folder: pathlib.Path, more: list[str]
) -> list[str]:
  """Of the trainer: the preset on the prepared shards, without a pause."""
  return [
    f'--flagfile={record.ROOT}/configs/{args.preset}.flags',
    '--data.input=',
    f'--data.dir={folder}/data',
    f'--hours={args.seconds / 3600}',
    '--eval.every=0',
    '--log.sample_every=0',
    *more,
  ]


def _prepare(
  text: pathlib.Path, config: config_lib.Config, folder: pathlib.Path
) -> None:
  """Shards of the text in `folder / 'data'`, with a tokenizer trained on it."""
  lines = text.read_bytes().splitlines(keepends=True)
  (folder / 'text').mkdir()
  for i in range(_FILES):
    path = folder / 'text' / f'{i:02d}.jsonl'
    path.write_bytes(b''.join(lines[i::_FILES]))
  prepare.prepare(
    f'{folder}/text',
    folder / 'data',
    train_tokenizer=config.model.vocab_size,
    workers=min(_FILES, os.cpu_count() or 1),
  )


def _ours(args, folder, more, text) -> dict[str, Any]:
  """Trains in a process of its own, and scores the last checkpoint."""
  run = tempfile.mkdtemp(dir=folder)
  program = [sys.executable, '-m', 'zaya_jax.main']
  flags = _flags(args, folder, [*more, f'--run_dir={run}'])
  _call([*program, *flags])
  log = pathlib.Path(run) / 'metrics.jsonl'
  lines = [json.loads(line) for line in log.read_text().splitlines()]
  first, *_, last = [line for line in lines if 'train/loss' in line]
  elapsed = last['time/elapsed_s'] - first['time/elapsed_s']
  scored = _call(
    [*program, '--mode=eval', f'--run_dir={run}', f'--eval.text={text}']
  )
  found = json.loads(scored)
  return {
    'program': 'zaya_jax',
    'steps': last['step'],
    # The clock of the first line has what was compiled before.
    'train_s': elapsed * last['step'] / (last['step'] - first['step']),
    'train_loss': last['train/loss'],
    'bits_per_byte': found['bits_per_byte'],
    'nll': found['nll'],
  }


def _peer(how: dict[str, Any], num_bytes: int) -> dict[str, Any]:
  """The dense GPT, trained and scored in a process of its own."""
  path = record.ROOT / 'benchmarks' / 'peers' / 'dense_gpt.py'
  found = json.loads(_call([sys.executable, str(path), json.dumps(how)]))
  nats = found.pop('held_out_nats')
  return {
    'program': f'dense {how["layers"]}x{how["width"]}',
    'lr': how['lr'],
    **found,
    'bits_per_byte': nats / math.log(2) / num_bytes,
  }


def _call(command: list[str]) -> str:
  """The last line that a program prints."""
  done = subprocess.run(
    command, cwd=record.ROOT, stdout=subprocess.PIPE, text=True, check=True
  )
  return done.stdout.strip().splitlines()[-1]


def _tell(path: pathlib.Path, about: dict[str, Any], rows: list) -> None:
  row = rows[-1]
  print(
    f'{row["program"]:<14} seed {row["seed"]} {row["steps"]:6,} steps '
    f'{row["bits_per_byte"]:.4f} bits per byte'
    + (f'  lr {row["lr"]:g}' if 'lr' in row else ''),
    flush=True,
  )
  record.write(path, {**about, 'rows': rows})


def _parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
    allow_abbrev=False, description=(__doc__ or '').partition('\n')[0]
  )
  parser.add_argument('--corpus', type=pathlib.Path, required=True)
  parser.add_argument('--preset', default='small')
  parser.add_argument('--seconds', type=float, default=120.0)
  parser.add_argument(
    '--seeds', type=lambda text: [int(x) for x in text.split(',')], default=[0]
  )
  parser.add_argument('--peers', default='8x512,16x512')
  parser.add_argument('--peer_lrs', default='1e-3,2e-3')
  parser.add_argument(
    '--held_out_bytes', type=int, default=4_000_000, help='of its beginning'
  )
  parser.add_argument(
    '--output', type=pathlib.Path, default=record.RESULTS / 'equal_time.json'
  )
  return parser


if __name__ == '__main__':
  main()
