# SPDX-License-Identifier: Apache-2.0
"""make plan-1024: what it asks for, prints, and when it fails."""

import pathlib
import subprocess
import sys

import pytest

from tests.support import scripts
from zaya_jax.plan import planner

PATH = pathlib.Path(__file__).parents[4] / 'ci' / 'plan_1024.py'
RULE = {'rule': 'peak', 'value': '81 GB', 'good': True, 'advice': ''}


@pytest.fixture
def script():
  return scripts.load('ci/plan_1024.py')


def _fake(monkeypatch, **changes):
  asked = []

  def compile_step(config, plan):
    asked.append((config, plan))
    return {
      'seconds': 20.0, 'host_bytes': 1.1e9, 'contracts': [RULE],
      'compare': {'all-gather': [2e9, 1e9], 'new': [0, 5]},
      'kernels': {
        'fusion': {}, 'zaya_ops experts_up': {'launches': 80},
        'triton cross_entropy_softmax': {'launches': 64},
      }, **changes,
    }  # fmt: skip

  monkeypatch.setattr(planner, 'compile_step', compile_step)
  return asked


def test_both_lengths_are_compiled_for_as_many_tokens(
  script, monkeypatch, capsys
):
  asked = _fake(monkeypatch)
  assert script.main() == 0
  assert [plan['devices'] for _, plan in asked] == [1024, 1024]
  assert [plan['tokens']['step'] for _, plan in asked] == [2**24, 2**24]
  long = asked[1][0]
  assert (long.data.seq_len, long.mesh.context) == (32_768, 2)
  assert long.model.rope_theta == 1e6
  shown = capsys.readouterr().out
  assert '-50.0%' in shown and 'ok      peak: 81 GB' in shown
  assert '1.10 GB of 8 GB of this machine' in shown
  assert '\n    zaya_ops experts_up 80, 2 a layer\n' in shown
  assert '\n    triton cross_entropy_softmax 64\n' in shown


@pytest.mark.parametrize(
  'changes', [{'contracts': [{**RULE, 'good': False}]}, {'host_bytes': 8.1e9}]
)
def test_broken_contracts_and_limits_fail(changes, script, monkeypatch):
  _fake(monkeypatch, **changes)
  assert script.main() == 1


def _took(monkeypatch, script, seconds):
  """The exit code if all together take so many seconds of CPU time."""
  _fake(monkeypatch)
  now = iter([10.0, 10.0 + seconds])
  monkeypatch.setattr(script, 'cpu_seconds', lambda: next(now))
  return script.main()


def test_cpu_time_is_limited(script, monkeypatch):
  assert _took(monkeypatch, script, script.SECONDS) == 0
  assert _took(monkeypatch, script, script.SECONDS + 1) == 1


def test_time_of_children_counts(script):
  before = script.cpu_seconds()
  program = 'import time\nwhile time.process_time() < 0.2: pass'
  subprocess.run([sys.executable, '-S', '-c', program], check=True)
  assert script.cpu_seconds() > before + 0.1
