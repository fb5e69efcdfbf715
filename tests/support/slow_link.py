# SPDX-License-Identifier: Apache-2.0
"""zaya_jax.main, in which some links or processes are slow.

    python -m tests.support.slow_link 1-2,3 --flag=value ...

Whatever is measured over the link of processes 1 and 2, or in process 3 alone,
takes TIMES as long. On a CPU a link that sleeps leaves its core to others,
which are faster then: half the speed would be hard to tell from noise.
"""

import functools
import sys
import time

from zaya_jax import main
from zaya_jax.bench.machine import collectives
from zaya_jax.bench.sweep import clock
from zaya_jax.runtime import processes

TIMES = 5


def slow(words: list[str]) -> None:
  """From now on these links ('1-2') and processes ('3') are slow."""
  make, measure = collectives.Group._program, clock.measure

  @functools.wraps(make)
  def program(group, *args):
    run, get = make(group, *args)
    ends = sorted({d.process_index for d in group.mesh.devices.flat})
    return (_slowly(run) if '-'.join(map(str, ends)) in words else run), get

  @functools.wraps(measure)
  def of_process(make, **more):
    here = str(processes.process()) in words
    slow_make = lambda calls: _slowly(make(calls))
    return measure(slow_make if here else make, **more)

  collectives.Group._program, clock.measure = program, of_process


def _slowly(run):
  def slowly():
    start = time.perf_counter()
    run()
    time.sleep((TIMES - 1) * (time.perf_counter() - start))

  return slowly


if __name__ == '__main__':
  slow(sys.argv.pop(1).split(','))
  sys.exit(main.main(sys.argv))
