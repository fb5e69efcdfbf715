# SPDX-License-Identifier: Apache-2.0
"""Random damage to prepared data: how much of it is accepted in silence?

    python -m benchmarks.tamper_shards [--trials=1000]

A folder of shards is harmed once, at random, and then opened as training does.
Silent is a trial in which it was taken.
"""

import collections
import pathlib
import random
import shutil

from benchmarks import record, tamper
from pipelines import errors, prepare
from pipelines.shards import manifest

KINDS = (
  'bit flip',
  'zeroed block',
  'truncated',
  'appended',
  'deleted',
  'swapped files',
  'file of another checkpoint',
  'symbolic link',
)


def trials(folder: str, count: int, seed: int = 0) -> dict:
  """Harms copies of a small folder of shards.

  Args:
    folder: to work in.
    count: of trials.
    seed: of what is harmed, and how.

  Returns:
    How many of each kind were refused, and the silent ones.
  """
  rng, root = random.Random(seed), pathlib.Path(folder)
  for name, word in (('1', 'one'), ('2', 'two')):
    text = root / f'{name}.txt'
    text.write_text(''.join(f'{word} {n} is {n * n}.\n' for n in range(4000)))
    prepare.prepare(
      str(text),
      root / name,
      record_tokens=256,
      shard_tokens=10_000,
      train_tokenizer=300,
    )
  shutil.copytree(root / '2', root / 'whole')
  harms = {kind: tamper.HARMS[kind] for kind in KINDS} | {'extra shard': _extra}
  refused, silent = collections.Counter(), []
  for _ in range(count):
    kind = rng.choice(list(harms))
    what = harms[kind](root, rng)
    if _is_taken(root / '2'):
      silent.append(f'{kind}: {what}')
    else:
      refused[kind] += 1
    shutil.rmtree(root / '2')
    shutil.copytree(root / 'whole', root / '2')
  assert _is_taken(root / '2')  # Unharmed.
  return {
    'trials': count,
    'silent': len(silent),
    'refused': dict(sorted(refused.items())),
    'silent_trials': silent,
  }


def _is_taken(folder: pathlib.Path) -> bool:
  try:
    manifest.verify(folder)
    manifest.load_tokenizer(folder)
  except errors.DataError:
    return False
  return True


def _extra(root: pathlib.Path, rng: random.Random) -> str:
  path = root / '2' / f'{rng.randrange(10**6)}{manifest.SUFFIX}'
  path.write_bytes(rng.randbytes(rng.choice([0, 10])))
  return path.name


if __name__ == '__main__':
  record.run_trials('benchmarks.tamper_shards', trials, 1000)
