# SPDX-License-Identifier: Apache-2.0
"""zaya_jax.main, in which some links are slow.

    python -m tests.support.slow_link 1-2,1-3 --flag=value ...

A program over such a link sleeps, as long as it takes and SLEEP_S.
"""

import sys
import time

from zaya_jax import main
from zaya_jax.bench.machine import collectives

SLEEP_S = 0.03


def slow(pairs: set[tuple[int, ...]]) -> None:
  """From now on links between these processes are slow."""
  make = collectives.Group._program

  def program(group, *args):
    run, get = make(group, *args)
    ends = {d.process_index for d in group.mesh.devices.flat}
    if tuple(sorted(ends)) not in pairs:
      return run, get

    def slowly():
      start = time.monotonic()
      run()
      time.sleep(SLEEP_S + time.monotonic() - start)

    return slowly, get

  collectives.Group._program = program


if __name__ == '__main__':
  words = sys.argv.pop(1).split(',')
  slow({tuple(map(int, word.split('-'))) for word in words if word})
  sys.exit(main.main(sys.argv))
