# SPDX-License-Identifier: Apache-2.0
"""A rank as its supervisor sees it, which trains nothing: it takes no second.

Ranks wait for each other at every step, for ever if one is gone, as those of
GPUs do. What they compute depends on each sample and their order.
"""

import os
import pathlib
import sys
import time
import zlib

from zaya_jax.checkpoint import folders, seal
from zaya_jax.runtime import beats, stop, supervised

# FAKE_STEPS, FAKE_EVERY and FAKE_STEP_S in the environment are of long runs.
STEPS, EVERY = 40, 5
STEP_S = 0.005


def newest(run_dir: pathlib.Path) -> tuple[int, int]:
  """The step and the value of the newest checkpoint."""
  steps = folders.steps(folders.root(str(run_dir)))
  if not steps:
    return 0, 0
  path = run_dir / 'checkpoints' / str(steps[-1]) / folders.STATE / 'value'
  return steps[-1], int(path.read_text())


def save(run_dir: pathlib.Path, step: int, value: int) -> None:
  """Writes a checkpoint aside, then renames it."""
  final = run_dir / 'checkpoints' / str(step)
  aside = final.with_name(f'{step}.partial')
  (aside / folders.STATE).mkdir(parents=True, exist_ok=True)
  (aside / folders.STATE / 'value').write_text(str(value))
  seal.write(str(aside), folders.facts(step, {}, {}))
  if not final.exists():
    aside.rename(final)


def main() -> int:
  """Trains; the exit code."""
  run_dir = pathlib.Path(sys.argv[1].partition('=')[2]).parents[1]
  supervised.wait()
  place = supervised.place()
  ranks = int(place.environment['JAX_NUM_PROCESSES'])
  beats.enter('restore')
  start, value = newest(run_dir)
  last = int(os.environ.get('FAKE_STEPS', STEPS))
  every = int(os.environ.get('FAKE_EVERY', EVERY))
  step_s = float(os.environ.get('FAKE_STEP_S', STEP_S))
  skipped = supervised.batches_to_skip(start)
  meet = run_dir / 'at' / str(place.generation)
  meet.mkdir(parents=True, exist_ok=True)
  with stop.StopSignal() as asked:
    for step in range(start + 1, last + 1):
      beats.enter('data', step)
      beats.enter('step', step)
      (meet / f'{place.rank}.{step}').write_text(asked.name)
      while len(there := list(meet.glob(f'*.{step}'))) < ranks:
        time.sleep(0.001)
      time.sleep(step_s)
      value = zlib.crc32(f'{value} {step + skipped}'.encode())
      beats.finish(step)
      stopping = any(path.read_text() for path in there)
      if step % every == 0 or stopping:
        beats.enter('save', step)
        supervised.check_fence()
        if place.rank == 0:
          save(run_dir, step, value)
      if stopping:
        return 75
  beats.enter('end')
  return 0


if __name__ == '__main__':
  try:
    sys.exit(main())
  except RuntimeError as error:
    beats.fail(getattr(error, 'exit_code', 1), str(error))
    print(error, file=sys.stderr)
    sys.exit(getattr(error, 'exit_code', 1))
