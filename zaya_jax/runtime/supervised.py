# SPDX-License-Identifier: Apache-2.0
"""The side of a training process that an agent has started.

It has imported all when its agent tells it, in one line of JSON on its standard
input, which rank of which generation it is.
"""

import ctypes
import dataclasses
import json
import os
import pathlib
import signal
import sys

from zaya_jax.runtime import beats, clock, fence

# Set where an agent starts a process: its slot and the agent's process id.
STANDBY = 'ZAYA_JAX_STANDBY'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Place:
  """What an agent tells a rank.

  Attributes:
    rank: which one.
    generation: of the run; a newer one fences this one off.
    run_dir: where the number of the newest generation is written.
    environment: variables to set.
    skip: [step, batches]: those to leave out when going on from that step.
    faults: of a drill, as `faults.parse` reads them.
    owner: of the run, whose supervisor has started this rank,
    epoch: and the number of its ownership.
    lease: address of the store that knows the owner.
  """

  rank: int
  generation: int
  run_dir: str
  environment: dict[str, str]
  skip: tuple[int, int] = (0, 0)
  faults: str = ''
  owner: str = ''
  epoch: int = 0
  lease: str = ''


_place: Place | None = None


def to_line(told: Place) -> str:
  """What `wait` reads."""
  return json.dumps(dataclasses.asdict(told)) + '\n'


def wait() -> None:
  """Waits for a place where an agent has started this process; else nothing."""
  global _place
  file, _, agent = os.environ.pop(STANDBY, '').partition(' ')
  if not file:
    return
  die_with_parent()
  line = sys.stdin.readline()
  if not line or os.getppid() != int(agent):  # Nobody needs this process.
    os._exit(0)
  clock.start()
  _place = Place(**json.loads(line))
  os.environ.update(_place.environment)
  inject = None
  if _place.faults:
    from zaya_jax.runtime import faults

    log = pathlib.Path(_place.run_dir, 'aegis', 'faults.jsonl')
    inject = faults.parse(_place.faults, _place.rank, _place.generation, log)
  beats.join(int(file), inject)
  beats.enter('init')


def die_with_parent() -> None:
  """Asks the kernel to kill this process when its parent ends."""
  set_death_signal = 1  # PR_SET_PDEATHSIG
  ctypes.CDLL(None).prctl(set_death_signal, signal.SIGKILL)


def place() -> Place | None:
  """What the agent told; None: a supervisor has not started this process."""
  return _place


def check_fence() -> None:
  """Raises FencedError if a newer generation has begun. Before each save."""
  if _place:
    fence.check(_place.run_dir, _place.generation)


def batches_to_skip(step: int) -> int:
  """How many batches to leave out when the run goes on from `step`."""
  return _place.skip[1] if _place and _place.skip[0] == step else 0
