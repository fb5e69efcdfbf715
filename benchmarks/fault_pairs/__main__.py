# SPDX-License-Identifier: Apache-2.0
"""Every pair of kinds of faults, at random times of supervised runs.

  python -m benchmarks.fault_pairs [--trials=20] [--jobs=6] [--only=fill_disk]

Supervisor, agents, links and lease store (etcd, if it is installed) are real;
ranks train nothing, and take a step each 20 ms. A run must end with the value
of an undisturbed one, or stop with exit code 75 and end so when it is repeated;
must not hang, condemn a node that nothing has happened to, or let ranks of two
generations step at the same time.
"""

import argparse
import collections
import concurrent.futures
import contextlib
import itertools
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence

from benchmarks import record
from benchmarks.fault_pairs import kinds, run

_DISK = '4m'


def main(argv: Sequence[str]) -> int:
  """Runs the command line; 1 if a run did not end as it must."""
  parser = argparse.ArgumentParser()
  parser.add_argument('--trials', type=int, default=20, help='of each pair')
  parser.add_argument('--jobs', type=int, default=6, help='runs at a time')
  parser.add_argument('--seed', type=int, default=0, help='of the first trial')
  parser.add_argument('--only', default='', help='pairs with one of these')
  parser.add_argument('--keep', action='store_true', help='folders of failures')
  parser.add_argument('--output', type=pathlib.Path)
  args = parser.parse_args(argv)
  about = record.circumstances('benchmarks.fault_pairs', ())
  with contextlib.ExitStack() as stack:
    root = pathlib.Path(tempfile.mkdtemp(prefix='zaya_pairs_'))
    etcd = stack.enter_context(_etcd(root)) if shutil.which('etcd') else 0
    pairs = list(pairs_of(args.only.split(',') if args.only else [], etcd))
    work = [
      (pair, args.seed + trial)
      for trial in range(args.trials)
      for pair in pairs
    ]
    rows = []
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
      done = [pool.submit(_one, root, etcd, *job, args.keep) for job in work]
      for future in concurrent.futures.as_completed(done):
        rows.append(future.result())
        if rows[-1]['wrong'] or not len(rows) % 50:
          print(f'{len(rows)}/{len(work)}', json.dumps(rows[-1]), flush=True)
    if not args.keep:
      shutil.rmtree(root, ignore_errors=True)
  found = summary(rows)
  print(json.dumps(found))
  if args.output:
    record.write(args.output, {**about, 'etcd': bool(etcd), **found})
  return int(bool(found['wrong']))


def pairs_of(only: list[str], etcd: int) -> Iterator[tuple[str, str]]:
  """All pairs, each also with itself; those that cannot be done are told."""
  names = dict(kinds.KINDS)
  if not etcd:
    print('lose_store is left out: etcd is not installed', file=sys.stderr)
    del names['lose_store']
  if os.getuid():
    print('fill_disk is left out: only root makes a disk', file=sys.stderr)
    del names['fill_disk']
  for pair in itertools.combinations_with_replacement(names, 2):
    if not only or set(only) & set(pair):
      yield pair


def summary(rows: list[dict]) -> dict:
  """Counts, and the rows in which something went wrong."""
  wrong = [row for row in rows if row['wrong']]
  return {
    'runs': len(rows),
    'pairs': len({tuple(row['pair']) for row in rows}),
    'exit_codes': collections.Counter(
      str(row['exit_codes'][0]) for row in rows
    ),
    'generations': collections.Counter(str(row['generations']) for row in rows),
    'seconds': round(sum(row['seconds'] for row in rows), 1),
    'wrong': wrong,
  }


def _one(root, etcd: int, pair: tuple[str, str], seed: int, keep: bool) -> dict:
  """One run on a small disk of its own, if there may be one."""
  folder = root / f'{pair[0]}-{pair[1]}-{seed}'
  disk = folder / 'disk'
  disk.mkdir(parents=True)
  mounted = not os.getuid()
  if mounted:
    size = f'size={_DISK}'
    command = ['mount', '-t', 'tmpfs', '-o', size, 'tmpfs', str(disk)]
    subprocess.run(command, check=True)
  try:
    row = run.disturb(run.Run(folder, etcd), pair, seed)
    if keep and row['wrong']:
      shutil.copytree(disk / 'run', folder / 'run', dirs_exist_ok=True)
  finally:
    if mounted:
      subprocess.run(['umount', '-l', str(disk)], check=True)
    if not (keep and row['wrong']):
      shutil.rmtree(folder, ignore_errors=True)
  return row


@contextlib.contextmanager
def _etcd(root: pathlib.Path) -> Iterator[int]:
  """An etcd on this machine; yields its port."""
  with socket.create_server(('127.0.0.1', 0)) as a:
    with socket.create_server(('127.0.0.1', 0)) as b:
      client, peer = a.getsockname()[1], b.getsockname()[1]
  urls = f'http://127.0.0.1:{client}', f'http://127.0.0.1:{peer}'
  command = f"""
    etcd --data-dir={root}/etcd --listen-client-urls={urls[0]}
    --advertise-client-urls={urls[0]} --listen-peer-urls={urls[1]}
    --initial-advertise-peer-urls={urls[1]} --initial-cluster=default={urls[1]}
  """.split()
  with (root / 'etcd.log').open('wb') as log:
    process = subprocess.Popen(command, stdout=log, stderr=log)
  try:
    _await(client)
    yield client
  finally:
    process.kill()
    process.wait()


def _await(port: int) -> None:
  for _ in range(200):
    with contextlib.suppress(OSError):
      socket.create_connection(('127.0.0.1', port), 1.0).close()
      return
    time.sleep(0.1)
  raise RuntimeError(f'etcd does not listen at port {port}')


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
