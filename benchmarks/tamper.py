# SPDX-License-Identifier: Apache-2.0
"""Random damage to a checkpoint: how much of it is accepted in silence?

    python -m benchmarks.tamper [--trials=1000]

A run has two checkpoints. The newer one is harmed once, at random; then the
newest valid checkpoint is looked for, as training, evaluation and export do.
Silent is a trial in which the harmed one was taken. Half of the trials are by
somebody who also makes all hashes of the seal anew, against a key.
"""

import collections
import os
import pathlib
import random
import shutil

from benchmarks import record
from zaya_jax.checkpoint import folders as folders_lib
from zaya_jax.checkpoint import seal, seal_key
from zaya_jax.checkpoint.reading import finder


def trials(folder: str, count: int, seed: int = 0) -> dict:
  """Harms copies of a small checkpoint.

  Args:
    folder: to work in.
    count: of trials.
    seed: of what is harmed, and how.

  Returns:
    How many of each kind were refused, for which reasons, and the silent ones.
  """
  rng = random.Random(seed)
  run, key = pathlib.Path(folder, 'run'), pathlib.Path(folder, 'key')
  key.write_bytes(rng.randbytes(32))
  with seal_key.trusting(str(key)):
    _make_run(run)
  root = pathlib.Path(folders_lib.root(str(run)))
  whole = pathlib.Path(folder, 'whole')
  shutil.copytree(root / '2', whole)
  refused, reasons, silent = collections.Counter(), collections.Counter(), []
  for trial in range(count):
    name = rng.choice(list(HARMS))
    forged = trial % 2 == 1
    what = HARMS[name](root, rng)
    if forged and (root / '2').is_dir():
      what += ', sealed anew without the key'
      _forge(root / '2')
    with seal_key.trusting(str(key) if forged else ''):
      found = _newest(run, reasons)
    if found != 1:
      silent.append(f'{name}: {what}')
    refused[f'{name}{", forged" * forged}'] += found == 1
    for left in root.iterdir():
      if left.name != '1':
        shutil.rmtree(left)
    shutil.copytree(whole, root / '2')
  with seal_key.trusting(str(key)):
    assert finder.newest(str(root)) == 2  # Unharmed it is taken.
  return {
    'trials': count,
    'silent': len(silent),
    'refused': dict(sorted(refused.items())),
    'reasons': dict(reasons.most_common()),
    'silent_trials': silent,
  }


def _make_run(run: pathlib.Path) -> None:
  import jax
  import jax.numpy as jnp

  from zaya_jax import config as config_lib
  from zaya_jax.checkpoint.writing import manager

  with manager.Manager(str(run), config_lib.CheckpointConfig()) as saved:
    for step in (1, 2):
      key = jax.random.key(step)
      state = {
        'params': {
          'w': jax.random.normal(key, (64, 32)),
          'b': jax.random.normal(key, (48,), jnp.bfloat16),
        },
        'step': jnp.int32(step),
      }
      saved.save(step, state, data_index=step, meta={'tokens': step})


def _newest(run: pathlib.Path, reasons: collections.Counter) -> int | None:
  root = folders_lib.root(str(run))
  for name in folders_lib.numbered(root):
    try:
      folders_lib.check(os.path.join(root, name))
    except seal.BrokenError as error:
      reasons[error.reason] += 1
  return finder.newest(root)


def _forge(directory: pathlib.Path) -> None:
  """Seals what is there, as far as it is possible."""
  try:
    facts = seal.read(str(directory))
    del facts['files']
  except (OSError, seal.BrokenError):
    facts = {'step': 2}
  for path in directory.rglob('*'):
    if path.is_symlink():
      return
  seal.write(str(directory), facts)


def _file(root: pathlib.Path, rng: random.Random, large: int = 1):
  files = [p for p in sorted((root / '2').rglob('*')) if p.is_file()]
  return rng.choice([p for p in files if p.stat().st_size >= large])


def _flip(root, rng) -> str:
  path = _file(root, rng)
  content = bytearray(path.read_bytes())
  bit = rng.randrange(8 * len(content))
  content[bit // 8] ^= 1 << bit % 8
  path.write_bytes(content)
  return f'bit {bit} of {path.relative_to(root)}'


def _zero(root, rng) -> str:
  path = _file(root, rng)
  content = bytearray(path.read_bytes())
  start = rng.randrange(len(content))
  size = min(4096, len(content) - start)
  if not any(content[start : start + size]):
    return _flip(root, rng)
  content[start : start + size] = bytes(size)
  path.write_bytes(content)
  return f'{size} bytes of {path.relative_to(root)}'


def _truncate(root, rng) -> str:
  path = _file(root, rng)
  os.truncate(path, rng.randrange(path.stat().st_size))
  return str(path.relative_to(root))


def _append(root, rng) -> str:
  path = _file(root, rng, 0)
  path.write_bytes(path.read_bytes() + rng.randbytes(rng.randint(1, 64)))
  return str(path.relative_to(root))


def _delete(root, rng) -> str:
  path = _file(root, rng, 0)
  path.unlink()
  return str(path.relative_to(root))


def _extra(root, rng) -> str:
  folders = [p for p in sorted((root / '2').rglob('*')) if p.is_dir()]
  path = rng.choice(folders) / f'{rng.randrange(10**6)}'
  path.write_bytes(rng.randbytes(rng.choice([0, 10])))
  return str(path.relative_to(root))


def _swap(root, rng) -> str:
  """Exchanges the contents of two files."""
  for _ in range(50):
    one, other = _file(root, rng), _file(root, rng)
    contents = one.read_bytes(), other.read_bytes()
    if contents[0] != contents[1]:
      one.write_bytes(contents[1])
      other.write_bytes(contents[0])
      return f'{one.relative_to(root)} and {other.relative_to(root)}'
  raise AssertionError('all files are alike')


def _replace(root, rng) -> str:
  """Takes the file that has this place in the checkpoint before."""
  for _ in range(200):
    path = _file(root, rng)
    twin = root / '1' / path.relative_to(root / '2')
    if twin.is_file() and twin.read_bytes() != path.read_bytes():
      shutil.copyfile(twin, path)
      return str(path.relative_to(root))
  raise AssertionError('all files are alike')


def _link(root, rng) -> str:
  path = _file(root, rng)
  path.unlink()
  path.symlink_to('/etc/hostname')
  return str(path.relative_to(root))


def _rename(root, rng) -> str:
  """Lets it pass for another step."""
  name = str(rng.randrange(3, 10**6))
  (root / '2').rename(root / name)
  return name


def _unseal(root, rng) -> str:
  del rng
  (root / '2' / seal.NAME).unlink()
  return seal.NAME


# Kind -> (root, rng) harms a file under root/2; says which.
HARMS = {
  'bit flip': _flip,
  'zeroed block': _zero,
  'truncated': _truncate,
  'appended': _append,
  'deleted': _delete,
  'extra file': _extra,
  'swapped files': _swap,
  'file of another checkpoint': _replace,
  'symbolic link': _link,
  'renamed checkpoint': _rename,
  'seal removed': _unseal,
}


def main() -> None:
  """Runs the trials and keeps the counts."""
  record.run_trials('benchmarks.tamper', trials, 1000)


if __name__ == '__main__':
  main()
