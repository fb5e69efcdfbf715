# SPDX-License-Identifier: Apache-2.0
"""The metrics and the health of a supervisor, over HTTP."""

import dataclasses
import socket
import urllib.error
import urllib.request

import pytest

from zaya_jax.aegis.decide import state as state_lib
from zaya_jax.aegis.supervisor import endpoint

STATE = state_lib.start(('a', 'b'), spares=('c',))


@pytest.fixture(scope='module')
def server():
  state = [STATE]
  server = endpoint.Server(0, lambda: state[0])
  server.state = state
  yield server
  server.close()


def get(server, path='/metrics', method='GET', host='127.0.0.1'):
  url = f'http://{host}:{server.port}{path}'
  request = urllib.request.Request(url, method=method)
  with urllib.request.urlopen(request, timeout=10) as answer:
    return answer.read().decode()


def metrics(server):
  """The value of each metric, as a Prometheus server reads the text."""
  lines = [line for line in get(server).splitlines() if line[0] != '#']
  return {name: float(value) for name, value in map(str.split, lines)}


def test_metrics_are_those_of_now(server):
  server.state[0] = STATE
  assert metrics(server) == {
    'zaya_jax_draining': 0,
    'zaya_jax_failed_saves': 0,
    'zaya_jax_fruitless_generations': 0,
    'zaya_jax_generation': 0,
    'zaya_jax_incidents_last_hour': 0,
    'zaya_jax_nodes': 2,
    'zaya_jax_nodes_wanted': 2,
    'zaya_jax_quarantined': 0,
    'zaya_jax_rollbacks': 0,
    'zaya_jax_running': 0,
    'zaya_jax_sealed_step': 0,
    'zaya_jax_spares': 1,
  }
  server.state[0] = dataclasses.replace(
    STATE,
    generation=3,
    running=True,
    sealed=(5, 40),
    nodes=('c',),
    spares=(),
    quarantine=(state_lib.Held(node='a'), state_lib.Held(node='b')),
    restarts=(1.0,) * 4,
    fruitless=5,
    rollbacks=(1,) * 6,
    failed_saves=7,
    draining='c',
  )
  assert list(metrics(server).values()) == [3, 1, 40, 1, 2, 0, 2, 4, 5, 6, 7, 1]
  assert '# TYPE zaya_jax_generation gauge\n' in get(server)


def test_health(server):
  server.state[0] = STATE
  assert get(server, '/healthz') == 'starting\n'
  server.state[0] = dataclasses.replace(STATE, running=True)
  assert get(server, '/healthz') == 'ok\n'


@pytest.mark.parametrize(
  'path, method, code',
  [
    ('/', 'GET', 404),
    ('/metrics/../etc/passwd', 'GET', 404),
    *(('/metrics', m, 405) for m in ('POST', 'PUT', 'DELETE', 'HEAD')),
    ('/healthz', 'POST', 405),
  ],
)
def test_nothing_else_is_answered(server, path, method, code):
  with pytest.raises(urllib.error.HTTPError) as caught:
    get(server, path, method)
  assert caught.value.code == code
  caught.value.close()


def test_only_this_machine_reaches_it(server):
  # 127.0.0.2 is this machine too, but not where it listens.
  for host in ('127.0.0.2', socket.gethostbyname(socket.gethostname())):
    if host != '127.0.0.1':
      with pytest.raises(OSError):
        socket.create_connection((host, server.port), timeout=10)


def test_slow_client_blocks_nobody(server):
  with socket.create_connection(('127.0.0.1', server.port)):
    assert get(server, '/healthz')
