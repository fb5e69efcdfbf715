# SPDX-License-Identifier: Apache-2.0
"""Commands of the site that a supervisor runs."""

import re
import shlex
import sys

import pytest

from zaya_jax.aegis.supervisor import hooks
from zaya_jax.config import fields


def python(program, *more):
  return ' '.join([sys.executable, '-c', f'"{program}"', *more])


def test_hook_gets_the_reason_as_one_word_that_no_shell_reads(tmp_path):
  out = tmp_path / 'out'
  program = f"import sys; open('{out}', 'w').write(repr(sys.argv[1:]))"
  command = python(program, 'NodeName={node}', 'Reason={reason}')
  reason = '$(reboot); `x` --force "quoted"\n{node}'
  assert hooks.run(command, node='n7', reason=reason) == ''
  expected = ['NodeName=n7', 'Reason=_reboot_x_--force_quoted_node_']
  assert out.read_text() == repr(expected)


def test_reason_is_cut(tmp_path):
  out = tmp_path / 'out'
  program = f"import sys; open('{out}', 'w').write(sys.argv[1])"
  assert hooks.run(python(program, '{reason}'), node='', reason='x' * 999) == ''
  assert out.read_text() == 'x' * 200


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


def test_commands_in_the_docstring_are_accepted_and_no_others():
  commands = re.findall(r'^\w+: +(.+)$', hooks.__doc__, re.M)
  assert [shlex.split(x)[0] for x in commands] == ['scontrol', 'kubectl']
  for command in commands:
    hooks.check('--aegis.drain', command)
    with pytest.raises(fields.UsageError):
      hooks.check('--aegis.drain', command.replace('{node}', '{host}'))


def test_hook_that_hangs_is_ended(monkeypatch):
  monkeypatch.setattr(hooks, 'TIMEOUT_S', 0.2)
  failed = hooks.run('sleep 600', node='n7', reason='')
  assert failed.startswith('sleep: ') and 'timed out' in failed


def test_megabytes_of_a_hook_are_read_and_cut():
  program = "print('x' * 3_000_000 + 'the end'); raise SystemExit(3)"
  failed = hooks.run(python(program), node='n7', reason='')
  assert 'ended with 3: xxx' in failed and failed.endswith('xthe end')
  assert len(failed) < 400


def test_what_a_hook_leaves_behind_is_not_waited_for(tmp_path):
  program = "import os, time; os.fork() or time.sleep(600); print('bad node')"
  failed = hooks.run(python(f'{program}; os._exit(1)'), node='n7', reason='')
  assert failed.endswith('ended with 1: bad node')
