# SPDX-License-Identifier: Apache-2.0
"""What faults cost a supervised run: detection, recovery, steps done again.

  python -m benchmarks.drills [--drill=kill_rank,freeze_rank] [--trials=10]

Each fault is injected into a real run of two processes on this machine, beside
a run that nothing happened to (`zaya_jax/aegis/drills/table.py`).
"""

import argparse
import json
import pathlib
import sys
from collections.abc import Sequence

from benchmarks import record
from zaya_jax.aegis.drills import mode


def main(argv: Sequence[str]) -> int:
  """Runs the command line; 1 if a drill did not end as it should."""
  parser = argparse.ArgumentParser()
  parser.add_argument('--drill', default='all')
  parser.add_argument('--trials', type=int, default=1)
  parser.add_argument(
    '--output', type=pathlib.Path, default=record.RESULTS / 'drills.json'
  )
  args = parser.parse_args(argv)
  about = record.circumstances('benchmarks.drills', ('jax', 'orbax-checkpoint'))
  rows = []
  for row in mode.run(tuple(args.drill.split(',')), trials=args.trials):
    print(json.dumps(row), flush=True)
    rows.append(row)
    # After each: the last of many must not lose the others.
    record.write(args.output, {**about, 'trials': args.trials, 'drills': rows})
  return int(not all(row['passed'] for row in rows))


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
