# SPDX-License-Identifier: Apache-2.0
"""One supervised run in a box: what starts it, and what its files say."""

import contextlib
import dataclasses
import json
import os
import pathlib
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from tests.cluster import box as box_lib
from zaya_jax.aegis.drills import trial as drills

ROOT = pathlib.Path(__file__).resolve().parents[2]
STEPS = 120
WAIT_S = 240.0  # Far more than any takes.
_CHANGED = ('--mode=', '--num_steps=', '--aegis.')
_FLAGS = [f for f in drills.FLAGS if not f.startswith(_CHANGED)]
_FAILURES = ('exit', 'hang', 'agent_lost', 'not_started', 'paused')


@dataclasses.dataclass(frozen=True)
class Final:
  """What a run has come to."""

  hashes: tuple[str, str]  # Of the parameters, of the whole state.
  data_index: int
  losses: dict[int, float]


class Site:
  """What all runs in a box share: their text, their programs, their Python.

  Args:
    box: where they run.
    folder: for their files.
  """

  def __init__(self, box: box_lib.Box, folder: pathlib.Path):
    self.box, self.folder = box, folder
    text = folder / 'text.txt'
    lines = (f'{n} times {n} is {n * n}.\n' for n in range(4000))
    text.write_text(''.join(lines))
    self.python = folder / 'python'
    self.fast = ' '.join(drills.fast_compile())
    self.python.write_text(
      '#!/bin/bash\n'
      f'export XLA_FLAGS="$XLA_FLAGS {self.fast}"\n'
      f'exec {sys.executable} "$@"\n'
    )
    self.python.chmod(0o755)
    self.environment = {
      **os.environ,
      **_settings(),
      'ZAYA_DIR': str(ROOT),
      'ZAYA_PYTHON': str(self.python),
      'JAX_PLATFORMS': 'cpu',
      'JAX_COMPILATION_CACHE_DIR': str(folder / 'compiled'),
      'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0',
      'JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES': '-1',
    }

  def flags(self, run_dir: pathlib.Path) -> list[str]:
    """The flags of a run, without those of its nodes."""
    return [
      *_FLAGS,
      f'--num_steps={STEPS}',
      f'--data.input={self.folder}/text.txt',
      f'--run_dir={run_dir}',
    ]


class Trial:
  """A run, and its end.

  Args:
    site: where.
    name: of its folder.
    run_dir: the same, if it is not of the site.
  """

  def __init__(
    self, site: Site, name: str, run_dir: pathlib.Path | None = None
  ):
    self.site, self.name = site, name
    self.run_dir = run_dir or site.folder / name
    self.log = site.folder / f'{name}.log'
    # Where owners and quarantine are known, which all runs of a site share.
    state = {'XDG_STATE_HOME': str(site.folder / f'{name}_state')}
    self.environment = site.environment | state
    self._popen: subprocess.Popen | None = None

  def start(self, *more: str, **environment: str) -> None:
    """Starts a supervisor on control."""
    with self.log.open('a') as file:
      self._popen = self.site.box.start(
        [str(self.site.python), '-m', 'zaya_jax.main', '--mode=supervise']
        + [*self.site.flags(self.run_dir), *more],
        env=self.environment | environment,
        stdout=file,
        stderr=file,
      )

  def wait(self) -> int:
    """Waits for that supervisor; returns its exit code."""
    return self._popen.wait(WAIT_S)

  def close(self) -> None:
    """Ends what is left of it."""
    if self._popen and self._popen.poll() is None:
      for pid in box_lib.with_words(f'--run_dir={self.run_dir}'):
        os.kill(pid, signal.SIGKILL)
      self._popen.wait()

  def rows(self, *kinds: str) -> list[dict[str, Any]]:
    """Lines of incidents.jsonl."""
    rows = _rows(self._there / 'incidents.jsonl')
    return [row for row in rows if row['kind'] in kinds or not kinds]

  def said(self, words: str) -> bool:
    """Whether the supervisor or a rank printed it."""
    return words in self.log.read_text(errors='replace')

  def sealed(self) -> int:
    """The newest checkpoint."""
    folder = self._there / 'checkpoints'
    names = os.listdir(folder) if folder.exists() else []
    return max((int(n) for n in names if n.isdigit()), default=0)

  def await_step(self, step: int) -> None:
    """Waits until a checkpoint of `step` or later is there."""
    await_(lambda: self.sealed() >= step, f'{self.name}: step {step}')

  def final(self) -> Final:
    """Reads the last checkpoint."""
    said = self.site.box.run(
      f'cd {ROOT}; JAX_PLATFORMS=cpu {sys.executable} -m zaya_jax.main '
      f'--mode=checkpoints --source={self.run_dir}/checkpoints/{STEPS} '
      '2> /dev/null',
      check=False,
    )
    try:
      about = json.loads(said.splitlines()[-1])
    except (IndexError, ValueError):
      return Final(('', ''), -1, {})
    rows = _rows(self._there / 'metrics.jsonl')
    losses = {r['step']: r['train/loss'] for r in rows if 'train/loss' in r}
    hashes = about.get('params_hash', ''), about.get('state_hash', '')
    return Final(hashes, about.get('data_index', -1), losses)

  def result(
    self, expected: Final | None, since: float | None = None
  ) -> dict[str, Any]:
    """The end state beside that of the undisturbed run.

    Args:
      expected: of the undisturbed run.
      since: when it was disturbed, seconds since 1970.
    """
    final = self.final()
    result: dict[str, Any] = {'trial': self.name}
    if since is not None:
      failed = [r['time'] for r in self.rows(*_FAILURES) if r['time'] >= since]
      first = min(failed, default=since)
      again = [r['time'] for r in self.rows('running') if r['time'] > first]
      result['detect_s'] = round(first - since, 1) if failed else None
      result['recover_s'] = round(again[0] - since, 1) if again else None
    if expected:
      result |= {
        'bit_equal': final.hashes == expected.hashes,
        'losses_equal': final.losses == expected.losses,
        'samples_lost': max(0, expected.data_index - final.data_index),
        'samples_repeated': max(0, final.data_index - expected.data_index),
      }
    state = [r for r in self.rows() if 'state' in r]
    ended = [r for r in self.rows() if 'done' in r]
    kinds = [r['kind'] for r in ended if r['kind'] in _FAILURES]
    return result | {'supervisors': len(state), 'incidents': kinds}

  def left(self) -> list[int]:
    """Processes of the run that still work."""
    pids = box_lib.with_words(f'{self.run_dir}/aegis')
    return [pid for pid in pids if pid != os.getpid()]

  @property
  def _there(self) -> pathlib.Path:
    return self.site.box.path(self.run_dir)


def stalls(steps: range, generation: int) -> str:
  """Steps at which rank 0 waits for 5 s, so that a run lasts."""
  return ','.join(f'stall@step:{step}:0:{generation}' for step in steps)


def finish(
  run: Trial, expected: Final, since: float | None = None
) -> dict[str, Any]:
  """Waits for the end of a run and of all its ranks; returns its row."""
  code = run.wait()
  with contextlib.suppress(TimeoutError):
    await_(lambda: not run.left(), 'the end of all ranks', 30)
  return run.result(expected, since) | {'code': code, 'left': len(run.left())}


def assert_whole(row: dict[str, Any], *, losses: bool = True) -> None:
  """Fails unless a run has ended as if nothing had happened."""
  assert row['code'] in (0, 'COMPLETED 0:0')
  assert row['bit_equal'] and (row['losses_equal'] or not losses)
  assert (row['samples_lost'], row['samples_repeated']) == (0, 0)
  assert row['left'] == 0


def await_(true: Callable[[], Any], what: str, wait_s: float = WAIT_S) -> Any:
  """Waits until something is true, but not for ever; returns it."""
  until = time.monotonic() + wait_s
  while not (found := true()):
    if time.monotonic() > until:
      raise TimeoutError(f'{what} did not come within {wait_s:.0f} s')
    time.sleep(0.05)
  return found


def quoted(words: Sequence[str]) -> str:
  """Words for a shell."""
  return ' '.join(map(shlex.quote, words))


def _settings() -> dict[str, str]:
  """The variables that deploy/ sets, for runs that it does not start."""
  lines = (ROOT / 'deploy' / 'mi300x.env').read_text().splitlines()
  return dict(x.split('=', 1) for x in lines if x[:1].isupper())


def _rows(path: pathlib.Path) -> list[dict[str, Any]]:
  if not path.exists():
    return []
  found = []
  for line in path.read_text(encoding='utf-8', errors='replace').split('\n'):
    try:
      row = json.loads(line)
    except ValueError:
      continue
    if isinstance(row, dict):
      found.append(row)
  return found
