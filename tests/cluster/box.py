# SPDX-License-Identifier: Apache-2.0
"""A few machines in one: namespaces with a network, names, and no way out.

A `Box` has process, mount and network namespaces of its own; each `Node` has
its own inside them, with an address and a name. All that runs there ends with
the box, and the box ends with the process that made it: nothing is left.
"""

import ctypes
import os
import pathlib
import signal
import subprocess
import time
from collections.abc import Sequence

_NET = '10.77.0'
_WAIT_S = 30.0


class Node:
  """A machine of the box; its first process is `sleep`.

  Args:
    box: where it is.
    name: of the host.
    number: last part of its address.
  """

  def __init__(self, box: 'Box', name: str, number: int):
    self._box, self.name, self._number = box, name, number
    self.address = f'{_NET}.{number}'
    self.boot()

  def boot(self) -> None:
    """Starts it, with no programs."""
    flags = '--pid --uts --net --mount --fork --mount-proc --kill-child'
    shell = f'hostname {self.name}; ip link set lo up; exec sleep infinity'
    self._outer = self._box.start(
      ['unshare', *flags.split(), 'sh', '-c', shell],
      stderr=subprocess.DEVNULL,  # It speaks when it is killed.
    )
    self.pid = _first_process(self._outer.pid, 'sleep')
    self.inside = inside = _pid_in(self.pid, self._box.pid)  # For control.
    self._box.run(
      f'ip link add {self.name} type veth peer name eth0 netns {inside} && '
      f'ip link set {self.name} master br0 up'
    )
    self.run(f'ip addr add {self.address}/24 dev eth0 && ip link set eth0 up')

  @property
  def runs(self) -> bool:
    """Whether it is on."""
    return self._outer.poll() is None

  def start(self, command: Sequence[str], **options) -> subprocess.Popen:
    """Starts a program on it, which ends with the box at the latest."""
    return self._box.keep(_start(self.pid, command, **options))

  def run(self, command: str, *, check: bool = True) -> str:
    """Runs a line of the shell on it; returns its output."""
    return _run(self.pid, command, check=check)

  def cut(self) -> None:
    """Takes its cable out: nobody is told."""
    self._box.run(f'ip link set {self.name} down')

  def mend(self) -> None:
    """Puts its cable in again."""
    self._box.run(f'ip link set {self.name} up')

  def power_off(self) -> None:
    """Ends all its programs at once; no connection is closed."""
    self.cut()
    os.kill(self.pid, signal.SIGKILL)
    self._outer.wait()
    self._box.run(f'ip link del {self.name}', check=False)

  def processes(self, words: str) -> list[int]:
    """Ids, outside of the box, of its processes with `words` in the command."""
    mine = os.readlink(f'/proc/{self.pid}/ns/pid')
    return [pid for pid in with_words(words) if _namespace(pid) == mine]


class Box:
  """Namespaces with `count` nodes n1, n2, ... and a host named control.

  Args:
    folder: for files.
    count: of nodes.
  """

  def __init__(self, folder: pathlib.Path, count: int):
    self._programs: list[subprocess.Popen] = []
    hosts = folder / 'hosts'
    names = {'control': 254} | {f'n{i}': i for i in range(1, count + 1)}
    lines = [f'{_NET}.{number} {name}' for name, number in names.items()]
    # The other ends of `wire`.
    lines += [f'10.78.{i}.{i} n{i}-far' for i in range(1, count + 1)]
    hosts.write_text('\n'.join(['127.0.0.1 localhost', *lines, '']))
    flags = '--pid --uts --net --mount --ipc --fork --mount-proc --kill-child'
    shell = (
      f'hostname control; mount --bind {hosts} /etc/hosts; ip link set lo up; '
      'mount -t tmpfs tmpfs /run; mkdir /run/sshd; '
      f'ip link add br0 type bridge; ip addr add {_NET}.254/24 dev br0; '
      'ip link set br0 up; exec sleep infinity'
    )
    self._outer = subprocess.Popen(
      ['unshare', *flags.split(), 'sh', '-c', shell],
      stdin=subprocess.DEVNULL,
      preexec_fn=_die_with_parent,
    )
    self.pid = _first_process(self._outer.pid, 'sleep')
    self.nodes = {
      name: Node(self, name, number)
      for name, number in names.items()
      if name != 'control'
    }

  def start(self, command: Sequence[str], **options) -> subprocess.Popen:
    """Starts a program on control, which ends with the box at the latest."""
    return self.keep(_start(self.pid, command, **options))

  def keep(self, program: subprocess.Popen) -> subprocess.Popen:
    """Waits for the end of a program when the box ends."""
    self._programs.append(program)
    return program

  def run(self, command: str, *, check: bool = True) -> str:
    """Runs a line of the shell on control; returns its output."""
    return _run(self.pid, command, check=check)

  def path(self, path: pathlib.Path) -> pathlib.Path:
    """Where a path of the box, with its mounts, lies outside of it."""
    return pathlib.Path(f'/proc/{self.pid}/root{path}')

  def close(self) -> None:
    """Ends everything."""
    self._outer.kill()
    for program in (self._outer, *self._programs):
      program.kill()  # Also one that stopped when its own program was stopped.
      program.wait()


def _start(pid: int, command: Sequence[str], **options) -> subprocess.Popen:
  options = {'stdin': subprocess.DEVNULL} | options
  return subprocess.Popen(
    ['nsenter', f'--target={pid}', '--all', f'--wd={os.getcwd()}', *command],
    preexec_fn=_die_with_parent,
    **options,
  )


def _run(pid: int, command: str, *, check: bool) -> str:
  with _start(
    pid,
    ['sh', '-c', command],
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
  ) as started:
    said, _ = started.communicate(timeout=120)
  if check and started.returncode:
    raise RuntimeError(f'{command}: {started.returncode}: {said}')
  return said


def _die_with_parent() -> None:
  ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def last_process(outer: int) -> int:
  """The program that a chain of nsenter and unshare has started."""
  while children := _children(outer):
    outer = children[0]
  return outer


def _first_process(outer: int, name: str) -> int:
  until = time.monotonic() + _WAIT_S
  while time.monotonic() < until:
    if _name(pid := last_process(outer)) == name:
      return pid
    time.sleep(0.01)
  raise RuntimeError(f'{name} did not start')


def _children(pid: int) -> list[int]:
  try:
    text = pathlib.Path(f'/proc/{pid}/task/{pid}/children').read_text()
  except OSError:
    return []
  return [int(child) for child in text.split()]


def _name(pid: int) -> str:
  try:
    return pathlib.Path(f'/proc/{pid}/comm').read_text().strip()
  except OSError:
    return ''


def _pid_in(pid: int, box: int) -> int:
  """The id of a process as the box, one namespace deeper, counts it."""
  depth = len(_ids(box)) - 1
  return _ids(pid)[depth]


def _ids(pid: int) -> list[int]:
  lines = pathlib.Path(f'/proc/{pid}/status').read_text().splitlines()
  (line,) = (x for x in lines if x.startswith('NSpid:'))
  return [int(number) for number in line.split()[1:]]


def _namespace(pid: int) -> str:
  try:
    return os.readlink(f'/proc/{pid}/ns/pid')
  except OSError:
    return ''


def with_words(words: str) -> list[int]:
  found = []
  for path in pathlib.Path('/proc').glob('[0-9]*/cmdline'):
    try:
      line = path.read_bytes().replace(b'\0', b' ').decode(errors='replace')
    except OSError:
      continue
    if words in line:
      found.append(int(path.parent.name))
  return found
