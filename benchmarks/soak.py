# SPDX-License-Identifier: Apache-2.0
"""Whether a supervisor leaves a run alone that is slow, but well.

  python -m benchmarks.soak [--minutes=30] [--busy=6]

Two processes train under it while others take the processors, and now one, now
the other is away for five seconds, as a network may be. The limit of a step is
15 seconds. A restart is a false one.
"""

import argparse
import collections
import json
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

from benchmarks import record
from zaya_jax.aegis.drills import table, trial

_EVERY = 50  # Steps between absences.
_STEPS = 10**6  # More than there is time for.


def main(argv: Sequence[str]) -> int:
  """Runs the command line; 1 after a false restart."""
  parser = argparse.ArgumentParser()
  parser.add_argument('--minutes', type=float, default=30.0)
  parser.add_argument('--busy', type=int, default=6, help='other processes')
  parser.add_argument(
    '--output', type=pathlib.Path, default=record.RESULTS / 'soak.json'
  )
  args = parser.parse_args(argv)
  about = record.circumstances('benchmarks.soak', ('jax',))
  busy = [
    subprocess.Popen([sys.executable, '-c', 'while True: pass'])
    for _ in range(args.busy)
  ]
  try:
    with tempfile.TemporaryDirectory() as root:
      found = soak(pathlib.Path(root), 60 * args.minutes)
  finally:
    for process in busy:
      process.kill()
  print(json.dumps(found))
  record.write(args.output, {**about, 'busy': args.busy, **found})
  return int(found['generations'] != 1 or found['exit_code'] != 75)


def soak(root: pathlib.Path, seconds: float) -> dict[str, object]:
  """What became of a run of so many seconds."""
  absences = (
    f'stall@step:{step}:{step // _EVERY % 2}:1'
    for step in range(_EVERY, 1000 * _EVERY, _EVERY)
  )
  flags = f'--num_steps={_STEPS} --checkpoint.every=500 --log.every=100'
  drill = table.Drill(
    faults=','.join(absences), flags=(*flags.split(), '--aegis.step_limit_s=15')
  )
  run = trial.Trial(root, 'soak', drill)
  started = time.monotonic()
  run.start()
  try:
    while time.monotonic() < started + seconds:
      if run.supervisor.poll() is not None:
        break
      time.sleep(1)
    run.supervisor.send_signal(signal.SIGTERM)
    code = run.await_end()
  finally:
    run.close()
  rows = (run.run_dir / 'incidents.jsonl').read_text().splitlines()
  kinds = collections.Counter(json.loads(row)['kind'] for row in rows)
  faults = (run.run_dir / 'aegis' / 'faults.jsonl').read_text().splitlines()
  steps = (run.run_dir / 'metrics.jsonl').read_text().splitlines()
  return {
    'seconds': time.monotonic() - started,
    'generations': run.generations(),
    'exit_code': code,
    'absences_of_5_s': len(faults),
    'steps': json.loads(steps[-1])['step'],
    'incidents': dict(kinds),
  }


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
