# SPDX-License-Identifier: Apache-2.0
"""kill -9 while checkpoints are saved: is a half of one ever chosen?

    python -m benchmarks.kill_save [--trials=100]

A process saves one checkpoint after another and says when each is on disk. It
is killed at a random moment. Then the newest valid checkpoint must be one that
is whole (every byte as it was sealed), and not older than the last that the
process has told of; and the next start must clear away the rest.
"""

import collections
import os
import pathlib
import random
import signal
import time

from benchmarks import record
from zaya_jax import config as config_lib
from zaya_jax.checkpoint import folders
from zaya_jax.checkpoint.reading import finder
from zaya_jax.checkpoint.writing import leftovers, manager

_LONGEST_S = 1.0  # Until it is killed: several saves.
_ELEMENTS = 1 << 20


def trials(folder: str, count: int, seed: int = 0) -> dict:
  """Kills `count` processes.

  They are forked from this one, which has imported all and not used jax.

  Returns:
    What each left behind, counted, and the trials with a wrong choice.
  """
  rng = random.Random(seed)
  left, wrong, saved = collections.Counter(), [], 0
  for trial in range(count):
    run = pathlib.Path(folder, str(trial))
    run.mkdir()
    child = os.fork()
    if not child:
      _save_for_ever(run)
    told = run / 'told'
    while not told.exists():
      time.sleep(0.005)
    time.sleep(rng.uniform(0, _LONGEST_S))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    last = int(told.read_text())
    root = folders.root(str(run))
    names = folders.incomplete(root)
    found = finder.newest(root)
    for kind in {name.partition('.')[2] or 'named' for name in names} or {''}:
      left[kind or 'nothing'] += 1
    if found is None or found < last or 'named' in names:
      wrong.append({'trial': trial, 'told': last, 'found': found})
    leftovers.clear(root)
    if folders.incomplete(root):
      wrong.append({'trial': trial, 'left': folders.incomplete(root)})
    saved += last + 1
  return {
    'trials': count,
    'wrong': len(wrong),
    'saves_before_kills': saved,
    'left_behind': dict(left.most_common()),
    'wrong_trials': wrong,
  }


def _save_for_ever(run: pathlib.Path) -> None:
  """Saves steps 0, 1, ...; the file 'told' has the last that is on disk."""
  import jax.numpy as jnp
  import numpy as np

  saved = manager.Manager(str(run), config_lib.CheckpointConfig(keep=2))
  noise = np.random.default_rng(0).random(_ELEMENTS, np.float32)
  for step in range(10**6):
    state = {'params': {'w': jnp.asarray(noise + step)}}
    saved.save(step, state, data_index=step, meta={})
    saved.wait()
    partial = run / 'told.partial'
    partial.write_text(str(step))
    partial.rename(run / 'told')


def main() -> None:
  """Runs the trials and keeps the counts."""
  record.run_trials('benchmarks.kill_save', trials, 100)


if __name__ == '__main__':
  main()
