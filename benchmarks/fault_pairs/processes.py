# SPDX-License-Identifier: Apache-2.0
"""The processes of one run, found by a variable that all of them inherit."""

import dataclasses
import os
import pathlib
import signal

VARIABLE = 'ZAYA_FAULT_PAIR'
_ROLES = {
  'fault_pairs.relay': 'relay',
  'fault_pairs.rank': 'rank',
  'aegis.agent': 'agent',
  'fault_pairs.supervise': 'supervisor',
}


@dataclasses.dataclass(frozen=True)
class Process:
  """One process of a run.

  Attributes:
    pid: its number.
    role: supervisor, relay, agent, rank or standby.
    node: the name of its node; '' for the supervisor.
  """

  pid: int
  role: str
  node: str

  def signal(self, number: int) -> None:
    """Sends a signal, unless it is gone."""
    try:
      os.kill(self.pid, number)
    except ProcessLookupError:
      pass


def find(folder: pathlib.Path) -> list[Process]:
  """All processes of the run in `folder`."""
  mark = f'{VARIABLE}={folder}'.encode()
  words, parents = {}, {}
  for path in pathlib.Path('/proc').glob('[0-9]*'):
    try:
      if mark not in (path / 'environ').read_bytes().split(b'\0'):
        continue
      words[int(path.name)] = (path / 'cmdline').read_text().split('\0')
      stat = (path / 'stat').read_text().rpartition(')')[2].split()
      parents[int(path.name)] = int(stat[1])
    except OSError:
      continue
  return [
    Process(pid, _role(pid, words[pid]), _node(pid, words, parents))
    for pid in words
  ]


def kill(folder: pathlib.Path) -> None:
  """Ends all of them, also those that are stopped."""
  for process in find(folder):
    process.signal(signal.SIGKILL)


def _role(pid: int, words: list[str]) -> str:
  text = ' '.join(words)
  role = next((r for part, r in _ROLES.items() if part in text), 'other')
  if role == 'rank' and not _is_training(pid):
    return 'standby'
  return role


def _is_training(pid: int) -> bool:
  """Whether a rank has begun: its ledger is open."""
  try:
    files = [os.readlink(f) for f in pathlib.Path(f'/proc/{pid}/fd').iterdir()]
  except OSError:
    return False
  return any('/ledger/' in name for name in files)


def _node(pid: int, words: dict, parents: dict) -> str:
  """The node of the nearest relay above a process."""
  while pid in words:
    if 'fault_pairs.relay' in ' '.join(words[pid]):
      at = next(i for i, w in enumerate(words[pid]) if 'fault_pairs.relay' in w)
      return words[pid][at + 2]
    pid = parents[pid]
  return ''
