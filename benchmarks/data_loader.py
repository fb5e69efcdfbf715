# SPDX-License-Identifier: Apache-2.0
"""What it costs to read training data, and what is waited for.

    python -m benchmarks.data_loader

- `speed`: millions of tokens a second of CPU time of one process, batches ready
  for the model, from records of 32,768 tokens with ids as frequent as words
  are, 66 million tokens in all and 131 million (`more text`). Peers
  in the same run: Grain on records as long as a window, its own shuffle and
  threads, tokens alone; and random windows of one file of ids in memory.
- `slow_store`: each read takes 100 ms, a step 2.5 s; 32 windows a step. To
  open a shard are two reads.
- `many_shards`: to open 100,000 shards and read a batch, in a process of its
  own; with Grain's source of the same files beside it.
- `resume`: the same with 10,000 shards at step 1,000,000.
- `few_files`: 2,000 windows from 10,000 shards with `ulimit -n 256`.
- `memory`: of the process while 1,000,000 windows are read.

The page cache is warm. It writes a gigabyte to --folder.
"""

import argparse
import functools
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

import grain
import numpy as np
from array_record.python import array_record_module

from benchmarks import linked_shards, record
from pipelines import loader
from pipelines.sources import stamp

_SHAPES = ((4_096, 32), (512, 256))  # Tokens of a window, windows of a batch.
_LATENCY_S, _STEP_S = 0.1, 2.5


def rate(take: Callable[[], object], tokens: int, batches: int) -> float:
  """Tokens of a batch, in millions a second of CPU time; best of three."""
  found = []
  for _ in range(3):
    began = time.process_time()
    for _ in range(batches):
      take()
    found.append(tokens * batches / (time.process_time() - began) / 1e6)
  return max(found)


def speed(folder: pathlib.Path, batches: int) -> list[dict]:
  """Each loader at each shape; shards have 250 records."""
  records, rows, made = linked_shards.text(250), [], {}
  for shards in (8, 16):  # 262 MB of ids, about the cache, and twice as many.
    where = folder / f'speed{shards}'
    made[str(where)] = linked_shards.make(where, records, shards)
  for length, batch in _SHAPES:
    tokens, mine = length * batch, []
    for where, data in made.items():
      with loader.make_train_loader(
        [where], seq_len=length, batch_size=batch, seed=0, manifests=[data]
      ) as it:
        for _ in range(batches):  # Fills the cache.
          next(it)
        mine.append(rate(functools.partial(next, it), tokens, batches))
    grains = rate(_grains(folder, records, length, batch), tokens, batches)
    flat = rate(_in_memory(records, length, batch), tokens, batches)
    rows.append(
      {
        'length': length,
        'batch': batch,
        'ours': mine[0],
        'ours, more text': mine[1],
        'grain, tokens alone': grains,
        'one array in memory, tokens alone': flat,
      }
    )
  return rows


def _grains(folder, records, length, batch):
  path = folder / f'{length}.array_record'
  writer = array_record_module.ArrayRecordWriter(
    str(path), 'group_size:1,zstd:3'
  )
  for tokens in records:
    for window in tokens.reshape(-1, length):
      writer.write(window.astype('<u4').tobytes())
  writer.close()
  source = grain.sources.ArrayRecordDataSource(str(path))
  dataset = (
    grain.MapDataset.source(source)
    .seed(0)
    .shuffle()
    .repeat()
    .map(lambda content: np.frombuffer(content, '<u4').astype(np.int32))
    .to_iter_dataset()
    .batch(batch)
  )
  rows = iter(dataset)
  return lambda: next(rows)


def _in_memory(records, length, batch):
  tokens = np.concatenate(records)
  random = np.random.default_rng(0)

  def take():
    starts = random.integers(0, len(tokens) - length, batch)
    return np.stack([tokens[i : i + length].astype(np.int32) for i in starts])

  return take


def slow_store(folder: pathlib.Path, steps: int) -> dict:
  """Seconds waited for data at each step; and with one read at a time."""
  length, batch = _SHAPES[0]
  fast = array_record_module.ArrayRecordReader

  class Slow:
    """Two reads to open a shard, one for each record."""

    def __init__(self, *args, **kwargs):
      time.sleep(2 * _LATENCY_S)
      self._reader = fast(*args, **kwargs)

    def read(self, positions):
      time.sleep(_LATENCY_S)
      return self._reader.read(positions)

  array_record_module.ArrayRecordReader = Slow
  try:
    with loader.make_train_loader(
      [str(folder / 'speed16')], seq_len=length, batch_size=batch, seed=1
    ) as batches:
      began = time.monotonic()
      next(batches)
      first = time.monotonic() - began
      waited = []
      for _ in range(steps):
        time.sleep(_STEP_S)
        began = time.monotonic()
        next(batches)
        waited.append(time.monotonic() - began)
  finally:
    array_record_module.ArrayRecordReader = fast
  return {
    'first_batch_s': first,
    'waited_s': waited,
    'waited_share': sum(waited) / (sum(waited) + steps * _STEP_S),
    'one_read_at_a_time_s': batch * _LATENCY_S,
  }


def memory(folder: pathlib.Path, windows: int) -> dict:
  """Megabytes of the process at tenths of so many windows of 64 tokens."""
  batch, found = 1_000, []
  with loader.make_train_loader(
    [str(folder / 'speed16')], seq_len=64, batch_size=batch, seed=2
  ) as batches:
    for i in range(windows // batch):
      next(batches)
      if (i + 1) % max(1, windows // batch // 10) == 0:
        found.append(_resident())
  return {'windows': windows, 'megabytes': found}


def _resident() -> float:
  pages = int(pathlib.Path('/proc/self/statm').read_text().split()[1])
  return pages * os.sysconf('SC_PAGE_SIZE') / 1e6


# In a process of its own: opens argv[1], reads argv[3] batches from row argv[2]
# on. The seconds are without those that imports take, the memory is with them.
_OPEN = """
import json, os, sys, time
from pipelines import loader
def most():
  lines = open('/proc/self/status').read().splitlines()
  return int(next(x for x in lines if 'VmHWM' in x).split()[1]) / 1e3
before = most()
began, used = time.monotonic(), time.process_time()
it = loader.make_train_loader(
  [sys.argv[1]], seq_len=1024, batch_size=32, seed=0)
it.state = int(sys.argv[2])
files = 0
for _ in range(int(sys.argv[3])):
  next(it)
  files = max(files, len(os.listdir('/proc/self/fd')))
print(json.dumps({
  'seconds': time.monotonic() - began,
  'cpu_seconds': time.process_time() - used,
  'imports_megabytes': before,
  'megabytes': most(),
  'files': files,
}))
"""
_GRAIN = """
import glob, json, sys, time
import grain
began = time.monotonic()
paths = sorted(glob.glob(sys.argv[1] + '/*.array_record'))
source = grain.sources.ArrayRecordDataSource(paths)
data = iter(grain.MapDataset.source(source).seed(0).shuffle().to_iter_dataset())
for _ in range(32):
  next(data)
lines = open('/proc/self/status').read().splitlines()
print(json.dumps({
  'seconds': time.monotonic() - began,
  'megabytes': int(next(x for x in lines if 'VmHWM' in x).split()[1]) / 1e3,
}))
"""


def _child(program: str, *args: object, files: int = 0) -> dict:
  limit = f'ulimit -n {files} && ' if files else ''
  done = subprocess.run(
    ['sh', '-c', f'{limit}exec "$0" "$@"', sys.executable, '-c', program]
    + [str(arg) for arg in args],
    capture_output=True,
    text=True,
    check=False,
    cwd=record.ROOT,
  )
  if done.returncode:
    return {'failed': done.stderr.strip().splitlines()[-1]}
  return json.loads(done.stdout)


def opening(folder: pathlib.Path, many: int, some: int) -> dict:
  """The four measurements of folders of small shards."""
  record_ = [np.full(1_024, 7, np.uint32)]
  for count in (many, some):
    made = linked_shards.make(folder / str(count), record_, count)
    stamp.compare(folder / str(count), [made.splits['train'].shards[0].name])
    stamp.write(folder / str(count))
  large, small = folder / str(many), folder / str(some)
  return {
    'many_shards': {'shards': many, **_child(_OPEN, large, 0, 1)},
    'many_shards_grain': _child(_GRAIN, large),
    'resume': {'shards': some, **_child(_OPEN, small, 32 * 10**6, 1)},
    'few_files': {'shards': some, **_child(_OPEN, small, 0, 63, files=256)},
  }


def main() -> None:
  """Prints and keeps the measurements."""
  parser = argparse.ArgumentParser()
  parser.add_argument('--folder', default=tempfile.gettempdir())
  parser.add_argument(
    '--output', type=pathlib.Path, default=record.RESULTS / 'data_loader.json'
  )
  args = parser.parse_args()
  packages = ('grain', 'array-record', 'numpy')
  result = record.circumstances('benchmarks.data_loader', packages)
  with tempfile.TemporaryDirectory(dir=args.folder) as name:
    folder = pathlib.Path(name)
    result['speed'] = speed(folder, batches=60)
    result['memory'] = memory(folder, 10**6)
    result['slow_store'] = slow_store(folder, steps=8)
    result |= opening(folder, 100_000, 10_000)
  print(json.dumps(result, indent=2))
  record.write(args.output, result)


if __name__ == '__main__':
  main()
