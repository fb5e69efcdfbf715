# SPDX-License-Identifier: Apache-2.0
"""The disk of a run: scattered and sequential reads, writes, fsync.

The file lies in --run_dir, else beside --output, else here. Reads go past the
page cache of the system (O_DIRECT) where the file system lets them. The number
of devices is that of threads, the size that of a block.
"""

import concurrent.futures
import contextlib
import functools
import mmap
import os
import pathlib
import shutil
import tempfile
from collections.abc import Callable
from typing import BinaryIO

import numpy as np

from zaya_jax import config as config_lib
from zaya_jax.bench.sweep import clock
from zaya_jax.bench.sweep import frame as frame_lib

UNIT = 'GB/s'
WORDS = '{case} of {size:,} bytes by {devices} threads'
CASES = ('write', 'fsync', 'read', 'scattered read')
THREADS = (1, 4, 16)
BLOCKS = (2**12, 2**14, 2**16, 2**18, 2**20)
_SEQUENTIAL = 2**22  # Bytes of a write and of a read in order.
_PAGE = 2**12
_SAMPLE = 64  # Bytes of each block that are compared.
_MOST = 2**28  # Bytes of the file: writing it takes seconds on a slow disk.
_SHARE = 4  # Of the free disk, at most one part of so many.


def cases(config: config_lib.Config) -> tuple[str, ...]:
  """What a disk does."""
  del config
  return CASES


def run(frame: frame_lib.Frame, config: config_lib.Config) -> None:
  """Measures the disk under a temporary file.

  Raises:
    OSError: if the file cannot be written.
  """
  folder = pathlib.Path(config.run_dir or os.path.dirname(config.output) or '.')
  folder.mkdir(parents=True, exist_ok=True)
  free = shutil.disk_usage(folder).free // _SHARE
  size = min(config.bench.max_bytes, _MOST, free) // _SEQUENTIAL * _SEQUENTIAL
  size = max(size, _SEQUENTIAL)
  frame.notes.append(f'The file was in {folder.resolve()}.')
  frame.expect(len(THREADS) + 3)
  with tempfile.TemporaryDirectory(dir=folder, prefix='.bench_') as inside:
    path, small = os.path.join(inside, 'file'), os.path.join(inside, 'small')
    write(path, size)
    with Reader(path, 1) as reader:
      if not reader.direct:
        frame.notes.append('Reads may come from the page cache of the system.')
      _single(frame, 'write', size, lambda: write(path, size))
      with open(small, 'ab', buffering=0) as journal:
        _single(frame, 'fsync', _PAGE, functools.partial(_append, journal))
      _single(frame, 'read', size, reader.in_order)
    if frame.wants('scattered read'):
      _scattered(frame, path)


def _single(frame, case, size, once: Callable[[], object]) -> None:
  def measure(size, expected_s):
    def make(calls):
      def run():
        for _ in range(calls):
          once()

      return run

    return clock.measure(make, repeats=frame.repeats, expected_s=expected_s)

  if frame.wants(case):
    frame.single(case, 1, size, size, measure)


def _scattered(frame, path) -> None:
  for threads in THREADS:
    with Reader(path, threads) as reader:

      def measure(size, expected_s, reader=reader):
        return clock.measure(
          lambda calls: lambda: reader.scattered(size, calls),
          repeats=frame.repeats,
          expected_s=expected_s,
        )

      frame.curve(
        'scattered read',
        threads,
        list(BLOCKS),
        lambda size: size,
        measure,
        knee=False,
      )


def write(path: str, size: int) -> None:
  """Writes a file of noise in order, and waits until it is on disk."""
  noise = _noise()
  with open(path, 'wb', buffering=0) as file:
    done = 0
    while done < size:
      done += file.write(noise[: size - done])
    os.fsync(file.fileno())


@functools.cache
def _noise() -> bytes:
  return np.random.default_rng(0).bytes(_SEQUENTIAL)


def _append(journal: BinaryIO) -> None:
  """A line of a journal, on disk."""
  journal.write(_noise()[:_PAGE])
  os.fsync(journal.fileno())


class Reader:
  """Threads that read one file.

  Args:
    path: of a file of whole blocks.
    threads: that read at the same time.

  Attributes:
    direct: whether reads go past the page cache.
  """

  def __init__(self, path: str, threads: int):
    self._file, self.direct = _open(path)
    self._size = os.fstat(self._file).st_size
    self._threads = threads
    self._pool = concurrent.futures.ThreadPoolExecutor(threads)
    self._seeds = np.random.SeedSequence(0)

  def __enter__(self) -> 'Reader':
    return self

  def __exit__(self, *unused) -> None:
    self._pool.shutdown()
    os.close(self._file)

  def in_order(self) -> int:
    """Reads the whole file; returns its bytes."""
    self._forget()
    step = min(_SEQUENTIAL, self._size)
    return self._read(step, range(0, self._size, step))

  def scattered(self, size: int, calls: int) -> int:
    """Reads blocks of `size` bytes at random places; returns all bytes."""
    self._forget()
    rng = np.random.default_rng(self._seeds.spawn(1)[0])
    places = rng.integers(self._size // size, size=calls) * size
    parts = np.array_split(places, self._threads)
    read = functools.partial(self._read, size)
    return sum(self._pool.map(read, (part.tolist() for part in parts)))

  def _read(self, size, places) -> int:
    total = 0
    with mmap.mmap(-1, size) as page:  # Aligned, as O_DIRECT wants it.
      for place in places:
        total += os.preadv(self._file, [page], place)
        start = place % _SEQUENTIAL
        if page[:_SAMPLE] != _noise()[start : start + _SAMPLE]:
          raise frame_lib.WrongError(
            f'storage: {size:,} bytes read at {place:,} are not those written.'
          )
    if total != size * len(places):
      raise frame_lib.WrongError(
        f'storage: {total:,} bytes were read of {size * len(places):,}.'
      )
    return total

  def _forget(self) -> None:
    if hasattr(os, 'posix_fadvise'):
      os.posix_fadvise(self._file, 0, 0, os.POSIX_FADV_DONTNEED)


def _open(path: str) -> tuple[int, bool]:
  """A file to read, and whether reads go past the page cache."""
  if flag := getattr(os, 'O_DIRECT', 0):
    with contextlib.suppress(OSError):  # Some file systems have it not.
      return os.open(path, os.O_RDONLY | flag), True
  return os.open(path, os.O_RDONLY), False
