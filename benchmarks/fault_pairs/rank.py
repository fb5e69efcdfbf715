# SPDX-License-Identifier: Apache-2.0
"""A rank that trains nothing and writes down which step it took, and when.

What it computes depends on every sample and on their order. Ranks wait for each
other at each step, for ever if one is gone, as those of GPUs do.
"""

import json
import pathlib
import sys
import time
import zlib

from zaya_jax.checkpoint import folders, seal
from zaya_jax.runtime import beats, stop, supervised

STEPS, EVERY, STEP_S = 160, 10, 0.02
SLOW = 'slow_start'  # A file of the run: ranks begin seconds later.


def newest(run_dir: pathlib.Path) -> tuple[int, int]:
  """The step and the value of the newest checkpoint; (0, 0): there is none."""
  steps = folders.steps(folders.root(str(run_dir)))
  if not steps:
    return 0, 0
  path = run_dir / 'checkpoints' / str(steps[-1]) / folders.STATE / 'value'
  return steps[-1], int(path.read_text())


def after(value: int, sample: int) -> int:
  """The value after one more sample."""
  return zlib.crc32(f'{value} {sample}'.encode())


def main() -> int:
  """Trains; the exit code."""
  run_dir = pathlib.Path(sys.argv[1].partition('=')[2]).parents[1]
  supervised.wait()
  place = supervised.place()
  beats.enter('restore')
  slow = run_dir.parents[1] / SLOW
  if slow.exists():
    time.sleep(float(slow.read_text()))
  start, value = newest(run_dir)
  skipped = supervised.batches_to_skip(start)
  with stop.StopSignal() as asked, _ledger(run_dir, place) as ledger:
    for step in range(start + 1, STEPS + 1):
      beats.enter('data', step)
      beats.enter('step', step)
      stopping = _meet(run_dir, place, step, asked.name)
      time.sleep(STEP_S)
      value = after(value, step + skipped)
      ledger.write(json.dumps([time.monotonic_ns(), place.generation, step]))
      ledger.write('\n')
      beats.finish(step)
      if step % EVERY == 0 or stopping or step == STEPS:
        beats.enter('save', step)
        _save(run_dir, place.rank, step, value)
      if stopping:
        return 75
  beats.enter('end')
  return 0


def _ledger(run_dir: pathlib.Path, place: supervised.Place):
  """What this rank did: unbuffered lines, on a disk that is never full."""
  path = run_dir.parents[1] / 'ledger' / f'{place.generation}.{place.rank}'
  path.parent.mkdir(exist_ok=True)
  return path.open('a', buffering=1)


def _meet(
  run_dir: pathlib.Path, place: supervised.Place, step: int, asked: str
) -> bool:
  """Waits for all ranks at a step; returns whether one was asked to stop."""
  ranks = int(place.environment['JAX_NUM_PROCESSES'])
  folder = run_dir.parents[1] / 'at' / str(place.generation)
  folder.mkdir(parents=True, exist_ok=True)
  (folder / f'{place.rank}.{step}').write_text(asked)
  while len(there := list(folder.glob(f'*.{step}'))) < ranks:
    time.sleep(0.002)
  return any(path.read_text() for path in there)


def _save(run_dir: pathlib.Path, rank: int, step: int, value: int) -> None:
  """Writes a checkpoint aside, then renames it; a full disk skips it."""
  supervised.check_fence()
  if rank:
    return
  final = run_dir / 'checkpoints' / str(step)
  aside = final.with_name(f'{step}{folders.ASIDE}')
  try:
    (aside / folders.STATE).mkdir(parents=True, exist_ok=True)
    (aside / folders.STATE / 'value').write_text(str(value))
    seal.write(str(aside), folders.facts(step, {}, {}))
    supervised.check_fence()
    if not final.exists():
      aside.rename(final)
  except OSError as error:
    print(f'step {step} is not saved: {error.strerror}', file=sys.stderr)
    if step == STEPS:
      raise SystemExit(75) from error


if __name__ == '__main__':
  try:
    sys.exit(main())
  except RuntimeError as error:
    beats.fail(getattr(error, 'exit_code', 1), str(error))
    print(error, file=sys.stderr)
    sys.exit(getattr(error, 'exit_code', 1))
