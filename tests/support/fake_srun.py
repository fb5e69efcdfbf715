# SPDX-License-Identifier: Apache-2.0
"""`srun` on one machine: starts FAKE_TASKS processes with Slurm's variables.

Options of srun come first, the command follows. FAKE_FLAGS_I is
added to the command of process I. Exits with the largest exit code, as srun
does. Each process writes to FAKE_OUT/I and its id to FAKE_OUT/I.pid.
"""

import itertools
import os
import pathlib
import signal
import subprocess
import sys


def main() -> int:
  """Runs the command line of this process."""
  options = ('-', '--')
  command = list(
    itertools.dropwhile(lambda x: x.startswith(options), sys.argv[1:])
  )
  tasks, out = (
    int(os.environ['FAKE_TASKS']),
    pathlib.Path(os.environ['FAKE_OUT']),
  )
  step = {
    'SLURM_STEP_NUM_TASKS': str(tasks),
    'SLURM_STEP_NODELIST': 'localhost',
    'SLURM_STEP_TASKS_PER_NODE': str(tasks),
    'SLURM_STEP_ID': '0',
  }
  signal.signal(signal.SIGTERM, signal.SIG_IGN)
  started = []
  for i in range(tasks):
    more = os.environ.get(f'FAKE_FLAGS_{i}', '').split()
    with (out / str(i)).open('w') as file:
      started.append(
        subprocess.Popen(
          [*command, *more],
          env={
            **os.environ,
            **step,
            'SLURM_PROCID': str(i),
            'SLURM_LOCALID': str(i),
          },
          stdout=file,
          stderr=subprocess.STDOUT,
        )
      )
    (out / f'{i}.pid').write_text(str(started[i].pid))
  codes = [process.wait() for process in started]
  return max(code if code >= 0 else 128 - code for code in codes)


if __name__ == '__main__':
  sys.exit(main())
