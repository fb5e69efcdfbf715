# SPDX-License-Identifier: Apache-2.0
"""The child that compiles: flags in, one JSON object out."""

import io
import json

import jax
import pytest

from ops import dispatch
from tests.support import released
from zaya_jax.plan.compile import rocm_child


@pytest.fixture
def asked(monkeypatch):
  """What `main` asks to compile, which nothing here does."""
  found = []

  def compile_step(config, devices, platform):
    found.append((config, devices, platform, dispatch.platform()))
    return {'arguments': 5}

  monkeypatch.setattr(rocm_child, 'compile_step', compile_step)
  monkeypatch.setattr(rocm_child, '_devices', lambda count: ['gpu'] * count)
  return found


def test_flags_come_from_stdin_and_the_answer_is_json(
  asked, monkeypatch, capsys
):
  config = released.parse('--plan.devices=16', '--seed=3')
  monkeypatch.setattr('sys.stdin', io.StringIO(config.to_flagfile()))
  rocm_child.main()
  (one,) = asked
  assert one == (config, ['gpu'] * 16, 'rocm', 'rocm')
  answer = json.loads(capsys.readouterr().out)
  assert answer['arguments'] == 5
  assert answer['seconds'] >= 0 and answer['host_bytes'] > 1e7
  assert dispatch.platform() == jax.default_backend()
