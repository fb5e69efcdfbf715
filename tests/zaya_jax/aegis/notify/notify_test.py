# SPDX-License-Identifier: Apache-2.0
"""What is told of a real supervisor, with real agents and ranks."""

import contextlib
import os
import socket
import sys
import threading
import urllib.error
import urllib.request

import pytest

from tests.support import fake_rank, receiver
from zaya_jax import config as config_lib
from zaya_jax.aegis.supervisor import supervisor

ECC = (
  '3,1,2,-;amdgpu 0000:05:00.0: amdgpu: 1 new uncorrectable hardware errors '
  'detected in umc block\n'
)
RANK = f"""
import sys
sys.path.insert(0, {os.getcwd()!r})
from tests.support import fake_rank
fake_rank.STEPS = 100_000
sys.exit(fake_rank.main())
"""


class Visitor(threading.Thread):
  """Looks from outside; breaks a node, then announces the end."""

  def __init__(self, port, run_dir):
    super().__init__(daemon=True)
    self.over, self.health, self.last = threading.Event(), [], {}
    self._port, self._run_dir = port, run_dir

  def run(self):
    log = self._run_dir / 'kmsg.b'
    self._until(lambda m: m['zaya_jax_step'] > 5)
    log.write_text(ECC)
    self._until(lambda m: m['zaya_jax_generation'] == 2)
    self._until(lambda m: m['zaya_jax_running'])
    (self._run_dir / 'preempt').write_text('maintenance')
    while not self.over.wait(0.01):
      self._health()

  def _until(self, enough):
    while not self.over.wait(0.01):
      self._health()
      with contextlib.suppress(OSError):
        lines = self._get('/metrics')[1].splitlines()
        pairs = (line.split() for line in lines if line[0] != '#')
        self.last = {name: float(value) for name, value in pairs}
        if enough(self.last):
          return

  def _health(self):
    with contextlib.suppress(OSError):
      if (found := self._get('/healthz')) not in self.health[-1:]:
        self.health.append(found)

  def _get(self, path):
    url = f'http://127.0.0.1:{self._port}{path}'
    try:
      with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
      with error:
        return error.code, error.read().decode()


@pytest.mark.long
@pytest.mark.parametrize('where', ['env:HOOK', 'argv'])
def test_lost_node_and_notice_are_seen_from_outside(
  tmp_path, monkeypatch, capfd, where
):
  with socket.create_server(('127.0.0.1', 0)) as taken:
    port = taken.getsockname()[1]
  program = tmp_path / 'rank.py'
  program.write_text(RANK)
  for node in 'abc':
    (tmp_path / f'kmsg.{node}').touch()
  hook, visitor = receiver.Receiver(), Visitor(port, tmp_path)
  monkeypatch.setenv('HOOK', hook.url)
  config = config_lib.Config(
    run_dir=str(tmp_path),
    aegis=config_lib.AegisConfig(
      nodes=('a', 'b', 'c'),
      spares=1,
      port=port,
      notify=hook.url if where == 'argv' else where,
      preempt_file=str(tmp_path / 'preempt'),
      logs=(f'kern:{tmp_path}/kmsg.{{node}}',),
    ),
  )
  visitor.start()
  try:
    code = supervisor.supervise(config, (sys.executable, str(program)))
  finally:
    visitor.over.set()
    visitor.join(60)
    hook.close()
  assert code == 75
  told = []
  while not hook.got.empty():
    told += hook.next()['incidents']
  assert ('gpu_memory_uncorrectable', 'replace_node', 'b') in {
    (x['kind'], x['action'], x['node']) for x in told
  }
  assert 'stop_requested' in {x['kind'] for x in told}
  counter = 'action="replace_node",kind="gpu_memory_uncorrectable"'
  assert visitor.last[f'zaya_jax_incidents_total{{{counter}}}'] == 1
  assert visitor.last['zaya_jax_quarantined'] == 1
  assert visitor.last['zaya_jax_step'] > 5
  assert (200, 'ok\n') in visitor.health
  assert {status for status, _ in visitor.health} == {200, 503}
  files = [path for path in tmp_path.rglob('*') if path.is_file()]
  said = ''.join(path.read_text(errors='replace') for path in files)
  assert 'SECRET' not in said + ''.join(capfd.readouterr())
  step, _ = fake_rank.newest(tmp_path)
  assert step > 5  # All ranks saved before they ended.
