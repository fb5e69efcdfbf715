# SPDX-License-Identifier: Apache-2.0
"""OpenSSH in a box: a server on each node, with keys of its own."""

import pathlib
import shlex

from tests.cluster import box as box_lib
from tests.cluster import trial

_SERVER = """
Port 2222
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/user_key.pub
PidFile none
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
StrictModes no
UsePAM no
ForceCommand none
PrintMotd no
"""


class Ssh:
  """Servers on all nodes; `agent` is what reaches them.

  Args:
    site: whose variables programs on nodes need.
    folder: for keys.
  """

  def __init__(self, site: trial.Site, folder: pathlib.Path):
    self._site, self._folder = site, folder
    for name in ('host_key', 'user_key'):
      site.box.run(f"ssh-keygen -q -t ed25519 -N '' -f {folder}/{name}")
    (folder / 'sshd_config').write_text(_SERVER.format(folder=folder))
    self._write_launcher()

  @property
  def agent(self) -> str:
    """A value of --aegis.agent."""
    options = {
      'IdentityFile': self._folder / 'user_key',
      'StrictHostKeyChecking': 'no',
      'UserKnownHostsFile': '/dev/null',
      'LogLevel': 'ERROR',
      'BatchMode': 'yes',
      # A connection that is dead ends after 15 seconds, on both sides.
      'ServerAliveInterval': 5,
      'ServerAliveCountMax': 3,
    }
    words = [f'-o {name}={value}' for name, value in options.items()]
    return f'ssh -p 2222 {" ".join(words)} {{node}} {self._folder}/on_node'

  def start(self) -> None:
    """Starts the servers that do not run, and waits until they listen."""
    command = ['/usr/sbin/sshd', '-D', '-f', f'{self._folder}/sshd_config']
    for node in self._site.box.nodes.values():
      if not node.processes(' '.join(command)):
        node.start(command)
      trial.await_(
        lambda node=node: node.run('ss -Hltn sport = :2222', check=False),
        f'the server of {node.name}',
        30,
      )

  def sessions(self, node: box_lib.Node) -> list[int]:
    """Processes of a server that serve a connection."""
    return node.processes('sshd: root@')

  def _write_launcher(self) -> None:
    """Writes what runs a program in the folder and with the variables of a run.

    ssh passes neither on.
    """
    names = ('XLA_FLAGS', 'JAX_')
    variables = {
      name: value
      for name, value in self._site.environment.items()
      if name.startswith(names)
    }
    lines = [f'export {k}={shlex.quote(v)}' for k, v in variables.items()]
    path = self._folder / 'on_node'
    path.write_text(
      '\n'.join(
        [
          '#!/bin/bash',
          *lines,
          f'export XLA_FLAGS="$XLA_FLAGS {self._site.fast}"',
          f'cd {trial.ROOT} && exec "$@"',
          '',
        ]
      )
    )
    path.chmod(0o755)
