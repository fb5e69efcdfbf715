# SPDX-License-Identifier: Apache-2.0
"""Random edits of a ledger or of its shards: how many does nobody notice?

    python -m benchmarks.tamper_ledger [--trials=1000]

A small run of three phases with a refused step and rows that were left out is
harmed once, at random, and then looked at as --mode=ledger does. Silent is a
trial in which it said what it says of the unharmed run. In a half of the trials
the rest of the chain is made anew behind the edit, and in a half of these the
checkpoint is sealed anew too, without the key.
"""

import collections
import json
import pathlib
import random
import shutil

from benchmarks import ledger_run, record, tamper
from zaya_jax.checkpoint import folders, seal, seal_key
from zaya_jax.data.ledger import book as book_lib
from zaya_jax.data.ledger import chain, mode


def trials(folder: str, count: int, seed: int = 0) -> dict:
  """Harms copies of a small run.

  Args:
    folder: to work in.
    count: of trials.
    seed: of what is harmed, and how.

  Returns:
    How many of each kind were noticed, by which check, and the silent ones.
  """
  rng, root = random.Random(seed), pathlib.Path(folder)
  (root / 'key').write_bytes(rng.randbytes(32))
  with seal_key.trusting(str(root / 'key')):
    ledger_run.make(root / 'run')
  shutil.copytree(root / 'run', root / 'whole')
  noticed, checks, silent = collections.Counter(), collections.Counter(), []
  kinds = [*LINES, *SHARDS]
  wanted = _told(root, forged=True)
  assert all(row.get('valid', True) for row in wanted), wanted
  for trial in range(count):
    kind = rng.choice(kinds)
    harm = LINES.get(kind) or SHARDS[kind]
    what, forged = harm(root, rng), False
    if kind in LINES and trial % 2 and _relink(root):
      kind += ', chained anew'
      if forged := trial % 4 == 1:
        kind += ', sealed anew'
        _forge(root)
    found = _told(root, forged=forged)
    if found == wanted:
      silent.append(f'{kind}: {what}')
    else:
      noticed[kind] += 1
      bad = (row['check'] for row in found if not row.get('valid', True))
      checks[next(bad, 'told')] += 1
    shutil.rmtree(root / 'run')
    shutil.copytree(root / 'whole', root / 'run')
  return {
    'trials': count,
    'silent': len(silent),
    'noticed': dict(sorted(noticed.items())),
    'by': dict(checks.most_common()),
    'silent_trials': silent,
  }


def _told(root, *, forged):
  """What --mode=ledger says; who has forged a seal does not have the key."""
  with seal_key.trusting(str(root / 'key') if forged else ''):
    return list(mode.check(str(root / 'run'), 'all'))


def _relink(root) -> bool:
  """Makes the chain anew; False, if some line is none, or nothing is left."""
  path = root / 'run' / chain.NAME
  if not path.exists():
    return False
  lines, head = [], ''
  try:
    for line in path.read_bytes().splitlines():
      row = json.loads(line)
      row.pop('previous', None)
      lines.append(chain.encode(row, head))
      head = chain.link(lines[-1])
  except (ValueError, AttributeError, TypeError):
    return False
  whole = (root / 'whole' / chain.NAME).read_bytes()
  if b''.join(lines) == whole:  # Only a hash was edited.
    return False
  path.write_bytes(b''.join(lines))
  return True


def _forge(root) -> None:
  """Has the checkpoint hold the new chain."""
  [directory] = (root / 'run' / 'checkpoints').iterdir()
  path = directory / folders.META / 'metadata'
  about = json.loads(path.read_bytes())
  lines, _ = chain.read(root / 'run' / chain.NAME)
  about[book_lib.META] = {
    'lines': len(lines),
    'head': chain.link(lines[-1]) if lines else '',
    'waiting': [],
  }
  path.write_text(json.dumps(about))
  seal.write(str(directory), {'step': int(directory.name)})


def _ledger(root):
  return root / 'run' / chain.NAME


def _edit(change):
  """A harm of the bytes of the ledger."""

  def harm(root, rng):
    path = _ledger(root)
    old = path.read_bytes()
    while (new := bytes(change(bytearray(old), rng))) == old:
      pass
    path.write_bytes(new)
    return f'{len(old)} -> {len(new)} bytes'

  return harm


def _of_lines(change):
  """A harm of the lines of the ledger."""

  def edit(content, rng):
    lines = bytes(content).splitlines(keepends=True)
    change(lines, rng)
    return b''.join(lines)

  return _edit(edit)


def _flip(content, rng):
  bit = rng.randrange(8 * len(content))
  content[bit // 8] ^= 1 << bit % 8
  return content


def _digit(content, rng):
  """Another number: what somebody would do who wants to be believed."""
  places = [i for i, byte in enumerate(content) if 48 <= byte < 58]
  content[rng.choice(places)] = rng.randrange(48, 58)
  return content


def _cut(content, rng):
  start = rng.randrange(len(content))
  del content[start : start + rng.randint(1, 200)]
  return content


def _insert(content, rng):
  start = rng.randrange(len(content) + 1)
  content[start:start] = rng.randbytes(rng.randint(1, 20))
  return content


def _swap(lines, rng):
  one, two = rng.sample(range(len(lines)), 2)
  lines[one], lines[two] = lines[two], lines[one]


def _repeat(lines, rng):
  lines.insert(rng.randrange(len(lines) + 1), rng.choice(lines))


def _drop(lines, rng):
  del lines[rng.randrange(len(lines))]


def _end(lines, rng):
  del lines[rng.randrange(len(lines)) :]


def _trade(lines, rng):
  """A field of one line goes to another."""
  some = [i for i, line in enumerate(lines) if line.startswith(b'{"rows"')]
  one, two = (json.loads(lines[i]) for i in rng.sample(some, 2))
  at = rng.choice(some)
  key = rng.choice(['rows', 'steps', 'tokens', 'counted', 'digest', 'each'])
  row = json.loads(lines[at])
  row[key] = (one if row[key] != one[key] else two)[key]
  lines[at] = (json.dumps(row, separators=(',', ':')) + '\n').encode()


def _delete(root, rng):
  del rng
  _ledger(root).unlink()
  return chain.NAME


LINES = {
  'bit flip': _edit(_flip),
  'another digit': _edit(_digit),
  'bytes cut': _edit(_cut),
  'bytes inserted': _edit(_insert),
  'lines swapped': _of_lines(_swap),
  'line repeated': _of_lines(_repeat),
  'line dropped': _of_lines(_drop),
  'end cut': _of_lines(_end),
  'field of another line': _of_lines(_trade),
  'ledger deleted': _delete,
}


def _shard(kind):
  """A harm of `tamper`, of the shards of a source."""

  def harm(root, rng):
    there = root / 'harmed'
    there.mkdir()
    for number, name in enumerate(rng.sample('ab', 2), 1):
      (root / 'run' / name).rename(there / f'{number}')
      (there / f'{number}.name').write_text(name)
    what = tamper.HARMS[kind](there, rng)
    for number in '12':
      name = (there / f'{number}.name').read_text()
      (there / number).rename(root / 'run' / name)
    shutil.rmtree(there)
    return what

  return harm


SHARDS = {
  f'shards: {kind}': _shard(kind)
  for kind in (
    'bit flip',
    'zeroed block',
    'truncated',
    'appended',
    'deleted',
    'swapped files',
    'file of another checkpoint',
    'symbolic link',
  )
}


if __name__ == '__main__':
  record.run_trials('benchmarks.tamper_ledger', trials, 1000)
