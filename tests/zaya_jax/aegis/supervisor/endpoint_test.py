# SPDX-License-Identifier: Apache-2.0
"""The metrics and the health of a supervisor, over HTTP."""

import contextlib
import dataclasses
import http.client
import socket
import types
import urllib.error
import urllib.request

import pytest

from zaya_jax.aegis.decide import events
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


def get(server, path='/metrics', method='GET', host='127.0.0.1', name=None):
  url = f'http://{host}:{server.port}{path}'
  headers = {'Host': name} if name else {}
  request = urllib.request.Request(url, method=method, headers=headers)
  with urllib.request.urlopen(request, timeout=10) as answer:
    return answer.read().decode()


def refused(*args, **kwargs):
  """The code and the text of an answer that is an error."""
  with pytest.raises(urllib.error.HTTPError) as caught:
    get(*args, **kwargs)
  with caught.value as error:
    return error.code, error.read().decode()


def metrics(server):
  """The value of each metric, as a Prometheus server reads the text."""
  lines = [line for line in get(server).splitlines() if line[0] != '#']
  return {name: float(value) for name, value in map(str.split, lines)}


def gauges(server):
  """The same of the state alone."""
  return {
    name.removeprefix('zaya_jax_'): value
    for name, value in metrics(server).items()
    if '{' not in name and 'step_age' not in name
  }


def test_metrics_are_those_of_now(server):
  server.state[0] = STATE
  assert gauges(server) == {
    'absent': 0,
    'alarm': 0,
    'draining': 0,
    'failed_saves': 0,
    'fruitless_generations': 0,
    'generation': 0,
    'incidents_last_hour': 0,
    'nodes': 2,
    'nodes_wanted': 2,
    'quarantined': 0,
    'rollbacks': 0,
    'running': 0,
    'sealed_step': 0,
    'spares': 1,
    'step': 0,
  }
  server.state[0] = dataclasses.replace(
    STATE,
    generation=3,
    running=True,
    alarm='no node is left',
    sealed=(5, 40),
    nodes=('c',),
    spares=(),
    quarantine=('a', 'b'),
    absent=('d', 'e', 'f'),
    restarts=(1.0,) * 4,
    fruitless=5,
    rollbacks=(1,) * 6,
    failed_saves=7,
    draining='c',
  )
  expected = [3, 1, 1, 40, 1, 2, 0, 2, 3, 4, 5, 6, 7, 1, 0]
  assert list(gauges(server).values()) == expected
  assert '# TYPE zaya_jax_generation gauge\n' in get(server)


@pytest.fixture
def fresh(monkeypatch):
  """A server of its own, and a clock that tests move."""
  clock = [100.0]
  monkeypatch.setattr(
    endpoint, 'time', types.SimpleNamespace(monotonic=lambda: clock[0])
  )
  server = endpoint.Server(0, lambda: STATE, kinds=('exit', 'nic_down'))
  yield server, clock
  server.close()


def test_age_counts_from_the_last_finished_step(fresh):
  server, clock = fresh
  age = lambda: metrics(server)['zaya_jax_step_age_seconds']
  clock[0] = 107.0
  assert age() == 7
  server.finished(5)
  clock[0] = 110.0
  assert age() == 3
  server.finished(5)  # The same, told again.
  server.finished(0)  # A new generation, which has none yet.
  clock[0] = 112.0
  assert age() == 5
  server.finished(4)  # It does a step again.
  assert age() == 0
  assert metrics(server)['zaya_jax_step'] == 4


def test_incidents_are_counted_by_kind_and_action(fresh):
  server, _ = fresh
  count = lambda kind, action: metrics(server)[
    f'zaya_jax_incidents_total{{action="{action}",kind="{kind}"}}'
  ]
  # Prometheus sees no rise from nothing to one, so it starts with zero.
  assert count('nic_down', 'replace_node') == 0
  seen = lambda kind: events.Event(time_s=1.0, kind=kind)
  server.count(seen('nic_down'), events.Action(kind='replace_node'))
  server.count(seen('nic_down'), events.Action(kind='replace_node'))
  server.count(seen('exit'), events.Action(kind='restart'))
  server.count(seen('exit'), events.Action(kind='ignore'))
  assert count('nic_down', 'replace_node') == 2
  assert count('exit', 'restart') == 1
  assert sum(v for k, v in metrics(server).items() if '{' in k) == 3
  assert '# TYPE zaya_jax_incidents_total counter\n' in get(server)


def test_health_is_that_of_the_run(server):
  server.state[0] = STATE
  assert refused(server, '/healthz') == (
    503,
    'generation 0 has finished no step yet\n',
  )
  running = server.state[0] = dataclasses.replace(STATE, running=True)
  assert get(server, '/healthz') == 'ok\n'
  server.state[0] = dataclasses.replace(running, alarm='the cap held')
  assert refused(server, '/healthz') == (503, 'the cap held\n')


@pytest.mark.parametrize(
  'name, fits',
  [
    ('127.0.0.1:9464', True),
    ('LOCALHOST', True),
    ('[::1]:9464', True),
    ('evil.example:9464', False),
    ('127.0.0.1.evil.example', False),
    ('[evil', False),
  ],
)
def test_loopback_answers_to_its_own_names_only(server, name, fits):
  server.state[0] = dataclasses.replace(STATE, running=True)
  for path in ('/metrics', '/healthz'):
    if fits:
      assert get(server, path, name=name)
    else:
      assert refused(server, path, name=name)[0] == 421


@pytest.mark.parametrize('bind', ['0.0.0.0', '::'])
def test_open_address_answers_to_any_name_and_is_told(bind):
  try:
    server = endpoint.Server(0, lambda: STATE, bind=bind)
  except OSError:
    pytest.skip('no IPv6')
  try:
    assert get(server, name='node-7.cluster:9464')
  finally:
    server.close()
  assert f'--aegis.bind={bind}' in endpoint.exposes(bind, 9464)


def test_loopback_exposes_nothing():
  for bind in ('127.0.0.1', '127.0.0.9', '::1', 'localhost'):
    assert endpoint.exposes(bind, 9464) == ''


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
  assert refused(server, path, method)[0] == code


def test_only_this_machine_reaches_it(server):
  # 127.0.0.2 is this machine too, but not where it listens.
  for host in ('127.0.0.2', socket.gethostbyname(socket.gethostname())):
    if host != '127.0.0.1':
      with pytest.raises(OSError):
        socket.create_connection((host, server.port), timeout=10)


def test_slow_client_blocks_nobody(server):
  server.state[0] = dataclasses.replace(STATE, running=True)
  with socket.create_connection(('127.0.0.1', server.port)):
    assert get(server, '/healthz')


def test_idle_clients_hold_few_threads(monkeypatch):
  monkeypatch.setattr(endpoint, '_CONNECTIONS', 2)
  server = endpoint.Server(0, lambda: STATE)
  try:
    with contextlib.ExitStack() as stack:
      there = [
        stack.enter_context(
          socket.create_connection(('127.0.0.1', server.port), timeout=10)
        )
        for _ in range(3)
      ]
      assert there[2].recv(1) == b''  # It was closed at once.
    for _ in range(1000):  # Those that went away made room.
      with contextlib.suppress(OSError, http.client.HTTPException):
        assert metrics(server)
        break
    else:
      pytest.fail('no room')
  finally:
    server.close()
