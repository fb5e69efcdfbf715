# SPDX-License-Identifier: Apache-2.0
"""Applies mutants one at a time, each in a copy of the tree, and runs tests.

    python -m tests.mutants.runner [--jobs=2] [WORD ...]

runs those whose file has one of the words in its name, or all. A mutant is a
table of a .toml file in this folder:

    [[mutant]]
    file = 'zaya_jax/optim/schedule.py'
    old = 'max(1, warmup - 1)'  # Found exactly once in the file.
    new = 'max(1, warmup)'
    tests = ['tests/zaya_jax/optim/schedule_test.py']  # One of them must fail.

The exit code is 1 if a mutant survives, or if what fails with it fails without
it too; it is 2 if an entry does not apply.
"""

import argparse
import ast
import concurrent.futures
import dataclasses
import itertools
import os
import pathlib
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib

ROOT = pathlib.Path(__file__).parents[2]
FOLDER = pathlib.Path(__file__).parent
_PATIENCE_S = 900.0  # A mutant may never end: that shows, too.
_SECONDS = itertools.count(1)  # Of no real file.
_PASSED, _FAILED, _BROKEN_OFF = 0, 1, 2  # What pytest returns.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mutant:
  """A small change of a file, and the tests that must see it."""

  file: str
  old: str
  new: str
  tests: tuple[str, ...]

  def __str__(self) -> str:
    """The change, on one line."""
    old, new = (' '.join(text.split()) for text in (self.old, self.new))
    return f'{self.file}: {old or "nothing"} -> {new or "nothing"}'

  def changed(self, root: pathlib.Path) -> str:
    """The text of the file with the change.

    Raises:
      ValueError: if the entry does not fit the tree.
    """
    for path in (self.file, *(test.split('::')[0] for test in self.tests)):
      if not (root / path).exists():
        raise ValueError(f'{self}: there is no {path}.')
    text = (root / self.file).read_text()
    if (count := text.count(self.old)) != 1:
      raise ValueError(
        f'{self}: the old text is found {count} times, not once.'
      )
    if self.old == self.new or not self.tests:
      raise ValueError(f'{self}: nothing is changed, or no test is named.')
    text = text.replace(self.old, self.new)
    if self.file.endswith('.py'):
      try:
        ast.parse(text)
      except SyntaxError as error:
        raise ValueError(f'{self}: not Python: {error}.') from error
    return text


def read(folder: pathlib.Path = FOLDER) -> list[Mutant]:
  """All mutants of a folder's .toml files."""
  return [
    Mutant(**entry | {'tests': tuple(entry['tests'])})
    for path in sorted(folder.glob('*.toml'))
    for entry in tomllib.loads(path.read_text())['mutant']
  ]


def copy(root: pathlib.Path, to: pathlib.Path) -> None:
  """Copies what tests read; virtual environments are linked."""
  left_out = shutil.ignore_patterns(
    '.git', '.venv*', '.*_cache', '__pycache__', 'runs', 'bazel-*'
  )
  shutil.copytree(root, to, symlinks=True, ignore=left_out)
  for path in root.glob('.venv*'):
    (to / path.name).symlink_to(path)


def survives(mutant: Mutant, tree: pathlib.Path) -> str | None:
  """Runs a mutant in a copy of the tree, which is as before in the end.

  Returns:
    Why it is not killed, or None.
  """
  path = tree / mutant.file
  before, after = path.read_text(), mutant.changed(tree)
  _write(path, after)
  try:
    code = _pytest(tree, *mutant.tests)
  finally:
    _write(path, before)
  if code is None:
    return None  # It never ends.
  if code == _PASSED:
    return 'survived'
  if code not in (_FAILED, _BROKEN_OFF):
    return f'pytest ended with {code}'
  if _pytest(tree, '--last-failed', *mutant.tests) != _PASSED:
    return 'the test fails without it, too'
  return None


def _write(path: pathlib.Path, text: str) -> None:
  """Writes a file that Python does not take for the one before."""
  path.write_text(text)
  # It compares seconds and sizes.
  os.utime(path, (0, next(_SECONDS)))


def _pytest(tree: pathlib.Path, *args: str) -> int | None:
  """The exit code, or None after a long time."""
  process = subprocess.Popen(
    [sys.executable, '-m', 'pytest', '-x', '-q', *args],
    cwd=tree,
    env=os.environ | {'PYTEST_DISABLE_PLUGIN_AUTOLOAD': '1'},
    stdin=subprocess.DEVNULL,
    stdout=subprocess.DEVNULL,
    stderr=subprocess.DEVNULL,
    start_new_session=True,
  )
  try:
    return process.wait(_PATIENCE_S)
  except subprocess.TimeoutExpired:
    return None
  finally:
    if process.poll() is None:
      os.killpg(process.pid, signal.SIGKILL)
      process.wait()


def run(mutants: list[Mutant], root: pathlib.Path, jobs: int) -> int:
  """Runs mutants and prints what became of each; returns how many live."""
  with tempfile.TemporaryDirectory(prefix='mutants_') as folder:
    trees = queue.SimpleQueue()
    for i in range(jobs):
      copy(root, pathlib.Path(folder, str(i)))
      trees.put(pathlib.Path(folder, str(i)))

    def one(mutant):
      tree, start = trees.get(), time.monotonic()
      try:
        fault = survives(mutant, tree)
      finally:
        trees.put(tree)
      seconds = time.monotonic() - start
      print(f'{fault or "killed"}, {seconds:.0f} s: {mutant}', flush=True)
      return fault

    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
      faults = list(pool.map(one, mutants))
  killed = faults.count(None)
  print(f'{killed} of {len(faults)} killed.')
  return len(faults) - killed


def main(argv: list[str]) -> int:
  """Returns the exit code."""
  parser = argparse.ArgumentParser(prog='python -m tests.mutants.runner')
  parser.add_argument('--jobs', type=int, default=2)
  parser.add_argument('words', nargs='*', metavar='WORD')
  args = parser.parse_args(argv)
  try:
    mutants = read()
    for mutant in mutants:
      mutant.changed(ROOT)
  except ValueError as error:
    print(error, file=sys.stderr)
    return 2
  chosen = [
    m
    for m in mutants
    if not args.words or any(word in m.file for word in args.words)
  ]
  return int(run(chosen, ROOT, args.jobs) > 0)


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
