# SPDX-License-Identifier: Apache-2.0
"""Signed checkpoints that are not the newest of this run, and late changes.

    python -m benchmarks.tamper_replays [--trials=1000]

Who attacks may write anywhere in the run directory and has kept all that this
run and others have signed with the same key, but has neither the key nor the
home of who trains. A trial changes something before the newest checkpoint is
looked for, or after all of it was hashed and before it is restored. Silent is
one after which training goes on from anything but its newest state.
"""

import collections
import os
import pathlib
import random
import shutil
from collections.abc import Callable
from typing import Any
from unittest import mock

from benchmarks import record
from zaya_jax.checkpoint import errors, fingerprint, seal, seal_key
from zaya_jax.checkpoint.reading import high_water, reader, resuming

_STEPS = (1, 2, 3)


def trials(folder: str, count: int, seed: int = 0) -> dict:
  """Attacks copies of a small run.

  Args:
    folder: to work in.
    count: of trials.
    seed: of what is attacked, and how.

  Returns:
    How many of each kind were refused, for which reasons, and the silent ones.
  """
  state = os.path.join(folder, 'state')
  with mock.patch.dict(os.environ, XDG_STATE_HOME=state):
    return _trials(pathlib.Path(folder), count, random.Random(seed))


def _trials(folder: pathlib.Path, count: int, rng: random.Random) -> dict:
  (folder / 'key').write_bytes(rng.randbytes(32))
  refused, reasons, silent = collections.Counter(), collections.Counter(), []
  with seal_key.trusting(str(folder / 'key')):
    runs = _Runs(folder)
    for _ in range(count):
      late = rng.random() < 0.5
      name = rng.choice(list(LATE if late else EARLY))
      harm = (LATE if late else EARLY)[name]
      runs.reset()
      try:
        found = runs.train(lambda harm=harm: harm(runs, rng), late=late)
        if found == runs.newest:
          reasons['of no effect'] += 1  # As a bit that nobody reads.
        else:
          silent.append(f'{name}: {found[0]}')
      except errors.CheckpointError as error:
        refused[name] += 1
        reasons[getattr(error, 'reason', 'older')] += 1
    runs.reset()
    assert runs.train(lambda: None) == runs.newest  # Unharmed it is taken.
  return {
    'trials': count,
    'silent': len(silent),
    'refused': dict(sorted(refused.items())),
    'reasons': dict(reasons.most_common()),
    'silent_trials': silent,
  }


class _Runs:
  """A run, its past, and another run, all signed with one key."""

  def __init__(self, folder: pathlib.Path):
    self.run, self._whole = folder / 'run', folder / 'whole'
    self.past, self.other = folder / 'past', folder / 'other'
    shape = None
    for path, seed in ((self.other, 7), (self.past, 5), (self.run, 0)):
      if path == self.run:  # Its past has its id.
        path.mkdir()
        shutil.copy(self.past / 'run_id', path)
      shape = _save(path, seed)
    self._abstract = shape
    shutil.copytree(self.run, self._whole)
    self._mark = high_water.read(str(self.run))
    assert self._mark and self._mark.step == _STEPS[-1]
    self.newest = self.train(lambda: None)

  def reset(self) -> None:
    """Makes the run what it was."""
    shutil.rmtree(self.run)
    shutil.copytree(self._whole, self.run)

  def train(self, harm: Callable[[], None], *, late: bool = True) -> tuple:
    """Goes on as training does.

    Args:
      harm: what is done meanwhile.
      late: after the newest checkpoint was verified, or before.

    Returns:
      The step, the position in the data and fingerprints of the state.
    """
    run = str(self.run)
    if not late:
      harm()
    step = resuming.newest(run)
    resuming.check(run, step)
    if late:
      harm()
    if step is None:
      return None, 0, {}
    state, index, _ = reader.restore(self.at(step), self._abstract)
    return step, index, fingerprint.to_json(fingerprint.of_tree(state))

  def at(self, step: int, run: pathlib.Path | None = None) -> str:
    """The path of a checkpoint."""
    return str((run or self.run) / 'checkpoints' / str(step))

  def put(self, source: str, step: int) -> None:
    """Replaces a checkpoint by another one."""
    shutil.rmtree(self.at(step), ignore_errors=True)
    shutil.copytree(source, self.at(step))


def _save(run: pathlib.Path, seed: int) -> Any:
  import jax
  import jax.numpy as jnp

  from zaya_jax import config as config_lib
  from zaya_jax.checkpoint.writing import manager

  with manager.Manager(str(run), config_lib.CheckpointConfig()) as saved:
    for step in _STEPS:
      key = jax.random.key(step + seed)
      state = {
        'params': {
          'w': jax.random.normal(key, (64, 32)),
          'b': jax.random.normal(key, (48,), jnp.bfloat16),
        },
        'step': jnp.int32(step),
      }
      about = {'tokens': step + seed}
      saved.save(step, state, data_index=4000 + step, meta=about)
  return jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state
  )


def _remove(runs, rng) -> None:
  """Leaves an older one, or none."""
  for step in _STEPS[rng.randrange(len(_STEPS)) :]:
    shutil.rmtree(runs.at(step))


def _hide(runs, rng) -> None:
  """Leaves something in the place of the newest that is no checkpoint."""
  newest = runs.at(_STEPS[-1])
  shutil.rmtree(newest)
  if rng.random() < 0.5:
    os.mkdir(newest)
  else:
    pathlib.Path(newest).write_text('')


def _rename_older(runs, rng) -> None:
  runs.put(runs.at(rng.choice(_STEPS[:-1])), _STEPS[-1] + rng.randrange(2))


def _past(runs, rng) -> None:
  """What this run had sealed as the same step in a life that was undone."""
  del rng
  runs.put(runs.at(_STEPS[-1], runs.past), _STEPS[-1])


def _of_other(runs, rng) -> None:
  """Another run's: in place of one's own, or all of them."""
  if rng.random() < 0.5:
    runs.put(runs.at(_STEPS[-1], runs.other), _STEPS[-1])
    return
  for step in _STEPS:
    runs.put(runs.at(step, runs.other), step)


def _of_other_with_id(runs, rng) -> None:
  """Another run's, with its id in place of one's own."""
  _of_other(runs, rng)
  shutil.copy(runs.other / 'run_id', runs.run)


def _forget_id(runs, rng) -> None:
  """Without its id it is a new run."""
  _of_other(runs, rng)
  (runs.run / 'run_id').unlink()


def _link(runs, rng) -> None:
  step = _STEPS[-1]
  source = rng.choice([runs.at(step, runs.past), runs.at(step, runs.other)])
  shutil.rmtree(runs.at(step))
  os.symlink(source, runs.at(step))


def _index(runs, rng) -> None:
  path = pathlib.Path(runs.at(_STEPS[-1]), 'meta', 'metadata')
  text, new = path.read_text(), str(rng.randrange(5000, 9999))
  path.write_text(text.replace(f'{4000 + _STEPS[-1]}', new))
  assert path.read_text() != text


def _index_and_seal(runs, rng) -> None:
  _index(runs, rng)
  facts = seal.read(runs.at(_STEPS[-1]))
  del facts['files']
  _seal_as_attacker(runs.at(_STEPS[-1]), facts)


def _arrays(runs, rng) -> None:
  """The arrays of another checkpoint, and perhaps its seal."""
  source = rng.choice(
    [
      runs.at(_STEPS[0]),
      runs.at(_STEPS[-1], runs.past),
      runs.at(_STEPS[-1], runs.other),
    ]
  )
  target = runs.at(_STEPS[-1])
  shutil.rmtree(f'{target}/state')
  shutil.copytree(f'{source}/state', f'{target}/state')
  if rng.random() < 0.5:
    shutil.copy(f'{source}/{seal.NAME}', target)


def _whole(runs, rng) -> None:
  """All of another checkpoint that was signed with the key."""
  step = _STEPS[-1]
  own = [runs.at(step, run) for run in (runs.past, runs.other)]
  runs.put(rng.choice([runs.at(_STEPS[0]), *own]), step)


def _unseal(runs, rng) -> None:
  _arrays(runs, rng)
  os.unlink(f'{runs.at(_STEPS[-1])}/{seal.NAME}')


def _flip(runs, rng) -> None:
  """A bit of what is restored."""
  root = pathlib.Path(runs.at(_STEPS[-1]), 'state')
  files = [p for p in sorted(root.rglob('*')) if p.is_file()]
  path = max(files, key=lambda p: p.stat().st_size)
  content = bytearray(path.read_bytes())
  content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
  path.write_bytes(content)


def _seal_as_attacker(directory: str, facts: dict[str, Any]) -> None:
  """Seals without the key, and unknown to this process, which trains."""
  known, trusted = dict(seal._known), list(seal_key._trusted)
  seal_key._trusted.clear()
  seal.write(directory, facts)
  seal_key._trusted.extend(trusted)
  seal._known.update(known)


# Kind -> (runs, rng) changes the run before its newest one is looked for.
EARLY = {
  'newest removed': _remove,
  'newest replaced by nothing': _hide,
  'older under a newer name': _rename_older,
  'same step of an undone past': _past,
  'checkpoint of another run': _of_other,
  'run and id of another': _of_other_with_id,
  'id removed': _forget_id,
  'link to a signed one': _link,
}
# And after it was verified.
LATE = {
  'late: data index': _index,
  'late: data index, sealed anew': _index_and_seal,
  'late: arrays of another': _arrays,
  'late: all of another': _whole,
  'late: arrays, unsealed': _unseal,
  'late: bit flip': _flip,
}


def main() -> None:
  """Runs the trials and keeps the counts."""
  record.run_trials('benchmarks.tamper_replays', trials, 1000)


if __name__ == '__main__':
  main()
