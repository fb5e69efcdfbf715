# SPDX-License-Identifier: Apache-2.0
"""The peer of the server: its fastest way, with what all clients wait for."""

import argparse
import json
import subprocess

import pytest

from benchmarks import serve


def test_the_peers_time_is_that_of_prompts_and_of_answers(monkeypatch):
  lines = [
    {'experts': 'a', 'batch': 8, 'context': 100},
    {'experts': 'b', 'batch': 8, 'context': 100},
    {'experts': 'c', 'error': 'torch does not have it'},
  ]
  # 8 x 100 tokens at 400 a second, then 8 x 50 at 200: 2 s and 2 s.
  lines[0] |= {'prefill_tokens_per_second': 400, 'tokens_per_second': 200}
  lines[1] |= {'prefill_tokens_per_second': 800, 'tokens_per_second': 80}

  def run(command, **how):
    assert '--batch=1,8' in command and '--model.num_layers=2' in command
    said = 'loading ...\n' + '\n'.join(map(json.dumps, lines))
    return subprocess.CompletedProcess(command, 0, said)

  monkeypatch.setattr(subprocess, 'run', run)
  args = argparse.Namespace(
    preset='small', clients='1,8', context=100, tokens=50,
    flags=['--model.num_layers=2'],
  )  # fmt: skip
  assert serve.peer(args) == {
    8: {
      'tokens_per_second': pytest.approx(100.0),
      'first_token_s': pytest.approx(2.0),
      'experts': 'a',
    }
  }
