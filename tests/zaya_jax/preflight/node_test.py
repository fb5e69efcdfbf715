# SPDX-License-Identifier: Apache-2.0
"""Programs that are missing, fail or hang; files and facts of this machine."""

import resource

import pytest

from zaya_jax.preflight import errors, rules
from zaya_jax.preflight import node as node_lib


@pytest.fixture
def node():
  return node_lib.Node()


def test_program_is_asked_once(node, tmp_path):
  script = f'echo x >> {tmp_path}/log; echo said'
  for _ in range(2):
    assert node.command(('sh', '-c', script)) == 'said\n'
  assert (tmp_path / 'log').read_text() == 'x\n'


@pytest.mark.parametrize(
  'words, reason',
  [
    (('no_such_program',), 'no_such_program: No such file'),
    (('sh', '-c', 'echo first; echo broken >&2; exit 9'), 'ended with 9: bro'),
  ],
)
def test_program_that_gives_nothing_is_not_seen(node, words, reason):
  with pytest.raises(errors.UnseenError, match=reason) as caught:
    node.command(words)
  assert not isinstance(caught.value, errors.SickError)


def test_program_that_hangs_is_not_asked_again(node, monkeypatch):
  monkeypatch.setattr(node_lib, 'TOOL_S', 0.05)
  with pytest.raises(errors.SickError, match='sleep does not end'):
    node.command(('sleep', '60'))
  with pytest.raises(errors.UnseenError, match='hung before') as caught:
    node.command(('sleep', '0'))
  assert not isinstance(caught.value, errors.SickError)


def test_programs_run_at_the_same_time(node, tmp_path):
  """Each waits for what the other makes."""
  both = [
    ('sh', '-c', f'cd {tmp_path}; mkfifo {mine}; {order}; echo done')
    for mine, order in (
      ('a', 'until [ -p b ]; do sleep 0.01; done'),
      ('b', 'until [ -p a ]; do sleep 0.01; done'),
    )
  ]
  node.ask(both)
  assert [node.command(words) for words in both] == ['done\n', 'done\n']


def test_files_are_those_that_can_be_read(node, tmp_path):
  for name in ('a', 'b'):
    (tmp_path / name).mkdir()
    (tmp_path / name / 'state').write_text(name)
  (tmp_path / 'c' / 'state').mkdir(parents=True)
  found = node.files(f'{tmp_path}/*/state')
  assert found == {f'{tmp_path}/{n}/state': n for n in ('a', 'b')}


def test_gpu_whose_driver_fails_is_a_fault(monkeypatch):
  class Broken(node_lib.Node):
    def tags(self):
      return {'any', 'gpu', 'nvidia'}

    def command(self, words):
      return super().command(('sh', '-c', 'echo GPU is lost; exit 15'))

  with pytest.raises(errors.SickError, match='GPU is lost'):
    Broken().fact('devices')


def test_environment_is_compared_with_that_of_deploy(node, monkeypatch):
  monkeypatch.setenv('NCCL_CROSS_NIC', '0')
  monkeypatch.setenv('NCCL_DEBUG', 'TRACE')
  monkeypatch.delenv('NCCL_PXN_DISABLE', raising=False)
  found = node.fact('environment')
  assert found['NCCL_CROSS_NIC'] == 'as there'
  assert found['NCCL_DEBUG'] == "'TRACE', not 'WARN'"
  assert found['NCCL_PXN_DISABLE'] == 'not set'
  assert 'XLA_FLAGS' in found and 'NCCL_IB_HCA' not in found


def test_limits_are_those_of_this_process(node):
  soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
  assert node.fact('nofile') == {'': soft}


def test_every_rule_asks_for_something_that_is_known():
  for rule in rules.read():
    assert bool(rule.fact) + bool(rule.command) + bool(rule.files) == 1
    assert not rule.fact or rule.fact in node_lib.FACTS
    assert rule.on in ('any', 'gpu', 'nvidia', 'rocm', 'rdma')
    assert rule.weight in ('fault', 'warning') and rule.advice
