# SPDX-License-Identifier: Apache-2.0
"""A supervised run in a process of its own, so that it can be stopped.

    python -m tests.support.fake_run RUN_DIR SETTINGS

SETTINGS is JSON for --aegis.*; ranks are those of `fake_rank`, with steps of
0.05 s that do not end by themselves.
"""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

from zaya_jax import config as config_lib
from zaya_jax.aegis.supervisor import supervisor

_ENVIRONMENT = {
  'FAKE_STEPS': '100000',
  'FAKE_EVERY': '20',
  'FAKE_STEP_S': '0.05',
  'PYTHONUNBUFFERED': '1',
}
_LIMIT_S = 60.0


class Run:
  """Starts a supervisor; what it prints is in RUN_DIR.log."""

  def __init__(self, run_dir: pathlib.Path, log: str = 'log', **aegis):
    self.run_dir, self.nodes = run_dir, aegis.setdefault('nodes', ['a', 'b'])
    self.log = run_dir.with_suffix(f'.{log}')
    aegis = {'step_limit_s': 600.0, **aegis}
    command = [sys.executable, '-m', __name__, str(run_dir), json.dumps(aegis)]
    with self.log.open('a') as file:
      self.process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=file,
        stderr=file,
        env={**_ENVIRONMENT, **os.environ},
      )

  def said(self, words: str) -> bool:
    """Whether it has printed these words."""
    return words in self.log.read_text(errors='replace')

  def until(self, words: str) -> float:
    """Waits until it has printed words; returns the monotonic time then."""
    wait(lambda: self.said(words) or self.process.poll() is not None)
    assert self.said(words), self.log.read_text(errors='replace')
    return time.monotonic()

  def agents(self) -> dict[str, int]:
    """Process ids by node, in the order in which they were started."""
    return dict(zip(self.nodes, children(self.process.pid), strict=False))

  def ranks(self, node: str) -> list[int]:
    """Process ids of the ranks of a node, then of those that wait."""
    return children(self.agents()[node])

  def steps(self, generation: int) -> int:
    """How many steps rank 0 of a generation has begun."""
    found = self.run_dir.glob(f'at/{generation}/0.*')
    return max((int(path.suffix[1:]) for path in found), default=0)

  def incidents(self, *kinds: str) -> list[dict]:
    """Lines of incidents.jsonl."""
    lines = (self.run_dir / 'incidents.jsonl').read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    return [row for row in rows if row['kind'] in kinds]

  def pause(self) -> None:
    """Stops the supervisor, and only it."""
    os.kill(self.process.pid, signal.SIGSTOP)

  def go_on(self) -> None:
    """Lets it run again."""
    os.kill(self.process.pid, signal.SIGCONT)

  def end(self) -> int:
    """Waits for its exit code."""
    return self.process.wait(_LIMIT_S)

  def close(self) -> None:
    """Ends it, and all that works in its run directory."""
    self.process.kill()
    self.process.wait()
    for path in pathlib.Path('/proc').glob('[0-9]*/cmdline'):
      try:
        if f'{self.run_dir}/' in path.read_text(errors='replace'):
          os.kill(int(path.parent.name), signal.SIGKILL)
      except OSError:  # It has ended meanwhile.
        continue


def wait(is_so) -> None:
  """Waits until something is so, but not for ever."""
  until = time.monotonic() + _LIMIT_S
  while not is_so() and time.monotonic() < until:
    time.sleep(0.01)


def children(pid: int) -> list[int]:
  """Process ids, in the order in which they were started."""
  path = pathlib.Path(f'/proc/{pid}/task/{pid}/children')
  return [int(child) for child in path.read_text().split()]


def main() -> int:
  """Supervises; the exit code."""
  settings = json.loads(sys.argv[2])
  lists = {k: tuple(v) for k, v in settings.items() if isinstance(v, list)}
  config = config_lib.Config(
    run_dir=sys.argv[1], aegis=config_lib.AegisConfig(**{**settings, **lists})
  )
  rank = (sys.executable, '-m', 'tests.support.fake_rank')
  try:
    return supervisor.supervise(config, rank)
  except RuntimeError as error:
    print(error)
    return getattr(error, 'exit_code', 1)


if __name__ == '__main__':
  sys.exit(main())
