# SPDX-License-Identifier: Apache-2.0
"""One supervised run with two faults, and whether all went as it must."""

import collections
import contextlib
import json
import os
import pathlib
import random
import subprocess
import sys
import time
from typing import Any

from benchmarks.fault_pairs import kinds, processes, rank, store

_LIMIT_S = 90.0  # A run that takes longer hangs; undisturbed it takes 6 s.
_LEASE_S = 4.0
_TRUTHFUL = (0, 75)  # The end, or: the same command goes on.
_REPEATS = 6  # Of the command, until the run is at its end.


def expected() -> int:
  """The value at the end of an undisturbed run."""
  value = 0
  for step in range(1, rank.STEPS + 1):
    value = rank.after(value, step)
  return value


class Run:
  """A supervised run in a folder of its own.

  Args:
    folder: for all of it; `disk` in it may be a small file system.
    etcd: the port of an etcd; 0: the lease is a local one.
  """

  def __init__(self, folder: pathlib.Path, etcd: int = 0):
    self.folder, self.run_dir = folder, folder / 'disk' / 'run'
    self.run_dir.mkdir(parents=True, exist_ok=True)
    self.nodes = ['a', 'b', 'c', 'd']
    self.kernel, self.clock = folder / 'kmsg', folder / 'clock'
    self.kernel.touch()
    self.clock.write_text('0')
    self.store = store.Store(etcd) if etcd else None
    self.supervisor: subprocess.Popen | None = None

  def start(self) -> None:
    """Starts the supervisor."""
    python = [sys.executable, '-m']
    relay = [*python, 'benchmarks.fault_pairs.relay', str(self.folder)]
    flags = [
      f'--run_dir={self.run_dir}',
      f'--aegis.nodes={",".join(self.nodes)}',
      '--aegis.spares=2',
      f'--aegis.agent={" ".join(relay)} {{node}}',
      f'--aegis.logs=kern:{self.kernel}',
      '--aegis.step_limit_s=1.5',
      '--aegis.phase_limit_s=8',
      f'--aegis.lease_s={_LEASE_S}',
      '--aegis.outage_wait_s=8',
      '--aegis.grace_s=5',
    ]
    if self.store:
      lease = f'etcd://127.0.0.1:{self.store.port}/{self.folder.name}'
      flags.append(f'--aegis.lease={lease}')
    command = [*python, 'benchmarks.fault_pairs.supervise', *flags]
    with (self.folder / 'log').open('a') as log:
      self.supervisor = subprocess.Popen(
        command,
        env={**os.environ, **self._environment()},
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
      )

  def _environment(self) -> dict[str, str]:
    shifted = pathlib.Path(__file__).parent / 'clock'
    paths = (str(shifted), os.getcwd(), os.environ.get('PYTHONPATH', ''))
    return {
      processes.VARIABLE: str(self.folder),
      'JAX_PLATFORMS': 'cpu',
      'PYTHONPATH': os.pathsep.join(path for path in paths if path),
      'XDG_STATE_HOME': str(self.folder / 'state'),
    }

  def processes(self, role: str) -> list[processes.Process]:
    """Those of a role, by node and number."""
    there = [p for p in processes.find(self.folder) if p.role == role]
    return sorted(there, key=lambda p: (p.node, p.pid))

  def training(self) -> list[str]:
    """The nodes whose ranks train now."""
    return sorted({p.node for p in self.processes('rank')})

  def await_end(self, seconds: float) -> int | None:
    """The exit code of the supervisor; None: it has not ended in time."""
    try:
      return self.supervisor.wait(seconds)
    except subprocess.TimeoutExpired:
      return None

  def await_step(self, step: int, seconds: float = 30.0) -> None:
    """Waits until rank 0 has taken a step, or the supervisor has ended."""
    until = time.monotonic() + seconds
    while time.monotonic() < until and self.supervisor.poll() is None:
      if any(line[2] >= step for line in self.ledger()):
        return
      time.sleep(0.02)

  def ledger(self) -> list[tuple[int, int, int]]:
    """What ranks have done: (time in ns, generation, step), by time."""
    lines = []
    for path in (self.folder / 'ledger').glob('*'):
      for line in path.read_text().splitlines():
        with contextlib.suppress(ValueError):
          lines.append(tuple(json.loads(line)))
    return sorted(lines)

  def incidents(self) -> list[dict[str, Any]]:
    """The rows of incidents.jsonl."""
    rows = []
    with contextlib.suppress(OSError):
      for line in (self.run_dir / 'incidents.jsonl').read_bytes().splitlines():
        with contextlib.suppress(ValueError):
          rows.append(json.loads(line))
    return rows

  def close(self) -> None:
    """Ends what is left of it."""
    processes.kill(self.folder)
    self.supervisor.wait()
    if self.store:
      self.store.close()


def disturb(run: Run, pair: tuple[str, str], seed: int) -> dict[str, Any]:
  """Does a run with two faults at random times; returns what became of it."""
  dice = random.Random(f'{pair} {seed}')
  began, codes, harmed = time.monotonic(), [], []
  run.start()
  try:
    run.await_step(dice.randrange(1, rank.STEPS // 2))
    for kind in pair:
      harmed.append(kinds.KINDS[kind](run, dice))
      time.sleep(dice.choice((0.0, dice.uniform(0.0, 1.0), dice.uniform(0, 4))))
    codes.append(run.await_end(_LIMIT_S))
    while codes[-1] == 75 and len(codes) < _REPEATS:
      _mend(run)
      run.start()
      codes.append(run.await_end(_LIMIT_S))
    _, value = rank.newest(run.run_dir)
  finally:
    log = (run.folder / 'log').read_text(errors='replace')
    run.close()
  wrong = [
    *_wrong_codes(codes),
    *_condemned(run.incidents(), pair, harmed),
    *two_owners(run.ledger()),
  ]
  if codes[-1] == 0 and value != expected():
    wrong.append('samples were lost or repeated: another value at the end')
  if 'Traceback' in log:
    wrong.append('a traceback')
  return {
    'pair': list(pair),
    'seed': seed,
    'seconds': round(time.monotonic() - began, 2),
    'exit_codes': codes,
    'generations': max((line[1] for line in run.ledger()), default=0),
    'wrong': wrong,
  }


def _mend(run: Run) -> None:
  """What a person repairs before the command is given again."""
  for path in (*run.folder.glob('*.cut'), run.folder / rank.SLOW):
    path.unlink(missing_ok=True)
  (run.run_dir / 'filler').unlink(missing_ok=True)
  processes.kill(run.folder)


def _wrong_codes(codes: list[int | None]) -> list[str]:
  if codes[-1] is None:
    return [f'hangs: no end within {_LIMIT_S:.0f} s']
  if untrue := [code for code in codes if code not in _TRUTHFUL]:
    return [f'exit code {untrue[0]}']
  return [] if codes[-1] == 0 else [f'{_REPEATS} repeats did not end it']


def _condemned(
  rows: list[dict], pair: tuple[str, str], harmed: list[set[str]]
) -> list[str]:
  """Nodes that were replaced though nothing had happened to them."""
  count = collections.Counter(n for nodes in harmed for n in nodes)
  strikes = collections.Counter(
    node
    for kind, nodes in zip(pair, harmed, strict=True)
    for node in nodes
    if kind in kinds.STRIKES
  )
  allowed = {
    node for node in count if strikes[node] > 1 or count[node] > strikes[node]
  }
  found = {
    row['done'].get('node')
    for row in rows
    if row.get('done', {}).get('kind') == 'replace_node'
  }
  return [f'{node} is condemned in error' for node in sorted(found - allowed)]


def two_owners(ledger: list[tuple[int, int, int]]) -> list[str]:
  """Says where an older generation steps after a newer one has begun."""
  newest, found = 0, []
  for _, generation, step in ledger:
    if generation < newest:
      found.append(f'step {step} of generation {generation} beside {newest}')
    newest = max(newest, generation)
  return found[:1]
