# SPDX-License-Identifier: Apache-2.0
"""Faults that a drill asks for happen once, where they are asked for."""

import json

import pytest

from zaya_jax.runtime import faults


@pytest.fixture
def enter(tmp_path, monkeypatch):
  """Makes the hook of a rank whose faults only write their name."""
  happened = []
  for kind in faults.KINDS:
    monkeypatch.setitem(
      faults.KINDS, kind, lambda kind=kind: happened.append(kind)
    )

  def make(text, rank=1, generation=1):
    hook = faults.parse(text, rank, generation, tmp_path / 'log')
    return hook, happened

  return make


def test_a_fault_happens_once_at_its_step(enter, tmp_path):
  hook, happened = enter('kill@step:3:1:1,raise@save:*:1:*')
  for phase, step in [('data', 3), ('step', 2), ('step', 3), ('step', 3)]:
    hook(phase, step)
  assert happened == ['kill']
  hook('save', 7)
  assert happened == ['kill', 'raise']
  rows = (tmp_path / 'log').read_text().splitlines()
  assert [json.loads(row)['step'] for row in rows] == [3, 7]


@pytest.mark.parametrize('rank, generation', [(0, 1), (1, 2)])
def test_others_have_none(enter, rank, generation):
  hook, happened = enter('kill@step:3:1:1', rank, generation)
  hook('step', 3)
  assert happened == []
