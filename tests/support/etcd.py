# SPDX-License-Identifier: Apache-2.0
"""An etcd cluster on loopback, of Debian's etcd-server and etcd-client."""

import contextlib
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest
import requests

needed = pytest.mark.skipif(
  not (shutil.which('etcd') and shutil.which('etcdctl')),
  reason="needs etcd and etcdctl: Debian's etcd-server and etcd-client",
)

_LIMIT_S = 60.0


class Cluster:
  """Members that run until the end of `with`.

  Args:
    folder: for data, logs and certificates.
    count: of members.
    tls: whether they speak TLS, with a certificate of an authority of ours.
  """

  def __init__(self, folder: pathlib.Path, count: int = 3, tls: bool = False):
    self.folder, self.ca = folder, folder / 'ca.pem'
    self._tls = tls
    if tls:
      _certificates(folder)
    ports = _free_ports(2 * count)
    self.ports, self._peers = ports[:count], ports[count:]
    self._members: list[subprocess.Popen | None] = [None] * count

  def __enter__(self) -> 'Cluster':
    try:
      self.start()
    except BaseException:
      self.__exit__()
      raise
    return self

  def __exit__(self, *unused) -> None:
    for i in range(len(self.ports)):
      self.kill(i)

  @property
  def hosts(self) -> str:
    """HOST:PORT of all members, as in an address."""
    return ','.join(f'127.0.0.1:{port}' for port in self.ports)

  def start(self) -> None:
    """Starts the members that do not run; waits until there is a leader."""
    for i, member in enumerate(self._members):
      if member is None:
        self._members[i] = self._start(i)
    self.wait()

  def wait(self) -> None:
    """Waits until the members that run accept what most of them must know."""
    end = time.monotonic() + _LIMIT_S
    for i in range(len(self.ports)):
      while self._members[i] and not self._is_healthy(i):
        assert time.monotonic() < end, (self.folder / f'{i}.log').read_text()
        time.sleep(0.05)

  def kill(self, i: int) -> None:
    """Kills a member; `start` starts it again with its data."""
    if member := self._members[i]:
      member.kill()
      member.wait()
      self._members[i] = None

  def wipe(self) -> None:
    """Kills all members, and starts them with nothing."""
    for i in range(len(self.ports)):
      self.kill(i)
      shutil.rmtree(self.folder / f'{i}')
    self.start()

  @contextlib.contextmanager
  def paused(self, i: int) -> Iterator[None]:
    """Stops a member: it accepts connections and does not answer."""
    os.kill(self._members[i].pid, signal.SIGSTOP)
    try:
      yield
    finally:
      os.kill(self._members[i].pid, signal.SIGCONT)

  def ctl(self, *arguments: str, user: str = '') -> str:
    """What `etcdctl` says."""
    command = ['etcdctl', f'--endpoints={self._url(0)}', *arguments]
    if self._tls:
      command.append(f'--cacert={self.ca}')
    if user:
      command.append(f'--user={user}')
    return subprocess.run(
      command,
      env={**os.environ, 'ETCDCTL_API': '3'},
      check=True,
      capture_output=True,
      text=True,
    ).stdout

  def _is_healthy(self, i: int) -> bool:
    # Asks for a value that most members must agree on.
    options: dict[str, Any] = {'verify': str(self.ca)} if self._tls else {}
    try:
      answer = requests.get(f'{self._url(i)}/health', timeout=5, **options)
      return answer.json()['health'] == 'true'
    except (requests.RequestException, LookupError):
      return False

  def _url(self, i: int) -> str:
    return f'{"https" if self._tls else "http"}://127.0.0.1:{self.ports[i]}'

  def _start(self, i: int) -> subprocess.Popen:
    peers = [f'http://127.0.0.1:{port}' for port in self._peers]
    command = [
      'etcd',
      f'--name=m{i}',
      f'--data-dir={self.folder / str(i)}',
      f'--listen-client-urls={self._url(i)}',
      f'--advertise-client-urls={self._url(i)}',
      f'--listen-peer-urls={peers[i]}',
      f'--initial-advertise-peer-urls={peers[i]}',
      '--initial-cluster='
      + ','.join(f'm{j}={peer}' for j, peer in enumerate(peers)),
      '--heartbeat-interval=100',
      '--election-timeout=1000',
      '--snapshot-count=1000',
      '--logger=zap',
      '--log-level=warn',
    ]
    if self._tls:
      command += [
        f'--cert-file={self.folder / "server.pem"}',
        f'--key-file={self.folder / "server.key"}',
      ]
    with (self.folder / f'{i}.log').open('ab') as log:
      return subprocess.Popen(command, stdout=log, stderr=log)


def _free_ports(count: int) -> list[int]:
  sockets = [socket.create_server(('127.0.0.1', 0)) for _ in range(count)]
  ports = [held.getsockname()[1] for held in sockets]
  for held in sockets:
    held.close()
  return ports


def _certificates(folder: pathlib.Path) -> None:
  """Writes ca.pem, server.pem, server.key, client.pem and client.key."""

  def openssl(*arguments: str) -> None:
    subprocess.run(
      ['openssl', *arguments], cwd=folder, check=True, capture_output=True
    )

  new = (
    'req',
    '-newkey',
    'ec',
    '-pkeyopt',
    'ec_paramgen_curve:P-256',
    '-nodes',
  )
  openssl(
    *new, '-x509', '-subj', '/CN=ours', '-keyout', 'ca.key', '-out', 'ca.pem'
  )
  (folder / 'names').write_text(
    'subjectAltName=IP:127.0.0.1,DNS:localhost\n'
    'extendedKeyUsage=serverAuth,clientAuth\n'
  )
  for name in ('server', 'client'):
    openssl(
      *new,
      '-subj',
      f'/CN={name}',
      '-keyout',
      f'{name}.key',
      '-out',
      f'{name}.csr',
    )
    openssl(
      *('x509', '-req', '-in', f'{name}.csr', '-CA', 'ca.pem', '-CAkey'),
      *(
        'ca.key',
        '-CAcreateserial',
        '-extfile',
        'names',
        '-out',
        f'{name}.pem',
      ),
    )
