# SPDX-License-Identifier: Apache-2.0
"""What a supervisor shows to others, and the commands it runs for them."""

import dataclasses
import socket
import sys
import urllib.error
import urllib.request

import pytest

from zaya_jax.aegis.decide import state as state_lib
from zaya_jax.aegis.supervisor import endpoint, hooks
from zaya_jax.config import fields

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


def test_metrics_are_those_of_now(server):
  assert 'zaya_jax_generation 0\n' in get(server)
  server.state[0] = dataclasses.replace(STATE, generation=3, sealed=(5, 40))
  text = get(server)
  assert 'zaya_jax_generation 3\n' in text
  assert 'zaya_jax_sealed_step 40\n' in text
  for line in text.splitlines():
    assert line.startswith('# TYPE ') or float(line.split()[1]) >= 0


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
    ('/metrics?stop', 'GET', 404),
    *(('/metrics', m, 501) for m in ('POST', 'PUT', 'DELETE', 'HEAD')),
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


def python(program, *more):
  return ' '.join([sys.executable, '-c', f'"{program}"', *more])


def test_hook_gets_the_reason_as_one_word(tmp_path):
  out = tmp_path / 'out'
  program = f"import sys; open('{out}', 'w').write(repr(sys.argv[1:]))"
  command = python(program, 'NodeName={node}', 'Reason={reason}')
  reason = '$(reboot); `x` --force "quoted"\n{node}'
  assert hooks.run(command, node='n7', reason=reason) == ''
  expected = ['NodeName=n7', 'Reason=$(reboot); `x` --force "quoted" {node}']
  assert out.read_text() == repr(expected)


def test_hook_that_fails_says_why():
  failed = hooks.run(
    python("import sys; sys.exit('no such node')"), node='n7', reason=''
  )
  assert 'ended with 1: no such node' in failed
  assert 'nothere' in hooks.run('nothere {node}', node='n7', reason='')


@pytest.mark.parametrize(
  'command, why',
  [
    ('drain {nod}', 'has {nod}'),
    ('drain {node.__class__}', 'it may have {node}'),
    ('drain {node', "'drain {node'"),
    ('drain "{node}', 'No closing quotation'),
    ('drain {}', 'it may have'),
  ],
)
def test_wrong_hook_is_refused(command, why):
  with pytest.raises(fields.UsageError, match='--aegis.drain') as caught:
    hooks.check('--aegis.drain', command)
  assert why in str(caught.value)


def test_shipped_hooks_are_right():
  for line in hooks.__doc__.splitlines():
    if ': ' in line:
      hooks.check('--aegis.drain', line.partition(':')[2].strip())
