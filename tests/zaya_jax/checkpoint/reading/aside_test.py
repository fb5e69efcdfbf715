# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that do not count are kept under another name."""

import os

import pytest

from zaya_jax.checkpoint import seal
from zaya_jax.checkpoint.reading import aside, high_water


def make(run, step):
  path = run / 'checkpoints' / str(step)
  path.mkdir(parents=True)
  return str(path), seal.write(str(path), {'step': step})


def test_what_is_set_aside_twice_is_kept_twice(tmp_path):
  for _ in range(2):
    path, _ = make(tmp_path, 7)
    aside.move(path, 'hash')
  first, second = sorted(os.listdir(tmp_path / 'checkpoints' / 'bad'))
  assert first == '7-hash' and second.startswith('7-hash-')


@pytest.mark.parametrize(
  'reason, left', [('hash', 6), ('zombie', 6), ('unsealed', 7), ('run', 7)]
)
def test_mark_goes_down_with_what_was_damaged(tmp_path, reason, left):
  make(tmp_path, 6)
  path, body = make(tmp_path, 7)
  high_water.set_to(str(tmp_path), body)
  aside.move(path, reason)
  assert high_water.read(str(tmp_path)).step == left


def test_mark_of_what_is_older_stays(tmp_path):
  make(tmp_path, 6)
  path, body = make(tmp_path, 7)
  newer, _ = make(tmp_path, 8)
  high_water.set_to(str(tmp_path), body)
  aside.move(newer, 'hash')
  assert high_water.read(str(tmp_path)).step == 7
