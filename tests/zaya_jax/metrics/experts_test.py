# SPDX-License-Identifier: Apache-2.0
"""Shares over the steps between rows, how many rows, and resuming."""

import json

import numpy as np
import pytest

from zaya_jax.metrics import experts


def _rows(path):
  return [json.loads(line) for line in path.read_text().splitlines()]


def _log(path, *, last_step=0, num_steps=40, every=10):
  return experts.ExpertLog(
    path, last_step=last_step, num_steps=num_steps, every=every
  )


def _measured(step):
  return {
    'moe/load': np.array([[step, 3, 0], [1, 1, 2]], np.float32),
    'moe/bias': np.array([[step, 0, -1], [0, 0, -1]], np.float32),
  }


def test_share_is_of_all_steps_since_the_row_before(tmp_path):
  log = _log(tmp_path / 'experts.jsonl')
  for step in range(1, 41):
    log.add(step, _measured(step))
  log.close()
  rows = _rows(tmp_path / 'experts.jsonl')
  assert [row['step'] for row in rows] == [1, 10, 20, 30, 40]
  first = sum(range(11, 21))
  assert rows[2]['share'][0][0] == pytest.approx(first / (first + 30), abs=1e-4)
  assert rows[2]['share'][1] == [0.25, 0.25, 0.5]
  assert rows[2]['bias'] == [[20, 0, -1], [0, 0, -1]]


def test_resumed_run_drops_what_it_computes_again(tmp_path):
  path = tmp_path / 'experts.jsonl'
  for last, steps in ((0, range(1, 36)), (20, range(21, 41))):
    log = _log(path, last_step=last)
    for step in steps:
      log.add(step, _measured(step))
    log.close()
  assert [row['step'] for row in _rows(path)] == [1, 10, 20, 30, 40]


def test_long_run_has_about_a_thousand_rows(tmp_path):
  log = _log(tmp_path / 'experts.jsonl', num_steps=10_500, every=3)
  for step in range(1, 10_501):
    log.add(step, _measured(1))
  log.close()
  rows = _rows(tmp_path / 'experts.jsonl')
  assert 800 < len(rows) <= 1002
  assert rows[-1]['step'] == 10_500


def test_step_of_nan_is_valid_json(tmp_path):
  log = _log(tmp_path / 'experts.jsonl')
  bad = np.full((2, 3), np.nan)
  log.add(1, {'moe/load': np.zeros((2, 3)), 'moe/bias': bad})
  log.close()
  (row,) = _rows(tmp_path / 'experts.jsonl')
  assert row['share'] == [[0, 0, 0]] * 2


def test_steps_without_routing_write_nothing(tmp_path):
  log = _log(tmp_path / 'experts.jsonl')
  log.add(1, {'train/loss': 1.0})
  log.close()
  assert not (tmp_path / 'experts.jsonl').exists()
