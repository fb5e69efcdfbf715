# SPDX-License-Identifier: Apache-2.0
"""How fast text becomes shards, and how full the windows of chats are.

    python -m benchmarks.data_prepare [--megabytes=160] [--files=8]

Python's own library in rows of 3,000 characters, by a BPE of 32,768 that is
trained on it. Each line is a process of its own: its CPU seconds, which are not
known of workers, and wall seconds, which mean little beside other programs.
datatrove runs beside it where it and orjson are installed; it makes files of
tokens. Windows: lengths of conversations are lognormal.
"""

import argparse
import importlib.util
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks import record
from pipelines import tokenizer
from pipelines.prepare import layout
from pipelines.prepare.input import read

_ROW = 3_000  # Characters.
_VOCABULARY = 32_768
_OURS = """
from pipelines import prepare
if __name__ == '__main__':
  prepare.prepare({source!r}, {output!r}, tokenizer={tokenizer!r},
    engine={engine!r}, workers={workers}, shard_tokens=2**22)
"""


def main() -> None:
  """Measures all, and keeps the result."""
  parser = argparse.ArgumentParser()
  parser.add_argument('--megabytes', type=int, default=160)
  parser.add_argument('--files', type=int, default=8)
  name = pathlib.Path(__file__).stem
  parser.add_argument(
    '--output', type=pathlib.Path, default=record.RESULTS / f'{name}.json'
  )
  args = parser.parse_args()
  there = importlib.util.find_spec
  packages = [n for n in ('gigatoken', 'datatrove') if there(n)]
  facts = record.circumstances(
    f'benchmarks.{name}', ('numpy', 'tokenizers', *packages)
  )
  with tempfile.TemporaryDirectory() as folder:
    result = {
      'speed': speeds(pathlib.Path(folder), args.megabytes, args.files),
      'chats': [windows(room) for room in (2048, 4096, 32_768)],
    }
  print(json.dumps(result, indent=2))
  record.write(args.output, {**facts, **result})


def speeds(root: pathlib.Path, megabytes: int, files: int) -> list[dict]:
  """CPU and wall speed of each engine and number of workers."""
  texts = list(_texts())
  path = str(root / 'tokenizer.json')
  tokenizer.train_bpe(iter(texts), _VOCABULARY).inner.save(path)
  large = _corpus(root / 'large', texts, megabytes, files)
  # The others are slow enough to be measured with less.
  small = _corpus(root / 'small', texts, megabytes // 8, files)
  cases: list[tuple[str, str, int]] = [('tokenizers', small, 1)]
  if importlib.util.find_spec('gigatoken'):
    cases += [('gigatoken', large, 1), ('gigatoken', large, 2)]
  found = []
  for engine, source, workers in cases:
    script = root / 'ours.py'
    script.write_text(
      _OURS.format(
        source=source,
        output=str(root / 'out'),
        tokenizer=path,
        engine=engine,
        workers=workers,
      )
    )
    measured = _run([sys.executable, str(script)], source, workers)
    found.append({'engine': engine, 'workers': workers, **measured})
    shutil.rmtree(root / 'out')
  if all(map(importlib.util.find_spec, ('datatrove', 'orjson'))):
    module = 'benchmarks.peers.datatrove_tokens'
    command = [sys.executable, '-m', module, small, str(root / 'peer'), path]
    found.append({'engine': 'datatrove', 'workers': 1, **_run(command, small)})
  return found


def windows(room: int, count: int = 20_000) -> dict[str, Any]:
  """The share of empty slots, packed as we do and one after the other."""
  rng = np.random.default_rng(0)
  lengths = rng.lognormal(np.log(room / 6), 0.9, count)
  lengths = np.clip(lengths, 16, room).astype(int)
  rows = np.zeros(count, layout.ROW)
  rows['tokens'], rows['masked'] = lengths, 1
  rows['hash'] = np.arange(count)
  side = layout.Side()
  packer = layout.Packer(side, room)
  packer.add(rows, lengths)
  packer.finish()
  used, left = 1, room
  for length in lengths.tolist():
    used, left = (used, left) if length <= left else (used + 1, room)
    left -= length
  total = int(lengths.sum())
  return {
    'window_tokens': room,
    'empty': 1 - total / side.tokens,
    'empty_next_fit': 1 - total / (used * room),
  }


def _texts():
  for document in read.Source('stdlib', 'text').documents():
    yield ''.join(document.pieces())


def _corpus(
  folder: pathlib.Path, texts: Sequence[str], megabytes: int, files: int
) -> str:
  """Rows that are all different, for equal ones would be left out."""
  folder.mkdir()
  parts = [t[i : i + _ROW] for t in texts for i in range(0, len(t), _ROW)]
  each, number = megabytes * 10**6 // files, 0
  for file in range(files):
    with open(folder / f'{file}.jsonl', 'w', encoding='utf-8') as f:
      while f.tell() < each:
        text = f'{number}: {parts[number % len(parts)]}'
        f.write(json.dumps({'text': text}) + '\n')
        number += 1
  return str(folder)


def _run(
  command: Sequence[str], source: str, workers: int = 1
) -> dict[str, float | None]:
  """Megabytes of text a second: of CPU time, and of wall time."""
  size = sum(
    len(json.loads(line)['text'].encode())
    for path in pathlib.Path(source).iterdir()
    for line in path.read_text().splitlines()
  )
  before, start = os.times(), time.perf_counter()
  env = {**os.environ, 'PYTHONPATH': str(record.ROOT)}
  subprocess.run(
    command, check=True, env=env, stdout=subprocess.DEVNULL, cwd=record.ROOT
  )
  wall, after = time.perf_counter() - start, os.times()
  used = (after.children_user + after.children_system) - (
    before.children_user + before.children_system
  )
  return {
    'megabytes': size / 1e6,
    'cpu_s': used if workers == 1 else None,
    'wall_s': wall,
    'mb_per_cpu_s': size / 1e6 / used if workers == 1 else None,
    'mb_per_wall_s': size / 1e6 / wall,
    'load': os.getloadavg()[0],
  }


if __name__ == '__main__':
  main()
