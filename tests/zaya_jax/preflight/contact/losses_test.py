# SPDX-License-Identifier: Apache-2.0
"""Losses beside those on a CPU."""

import json
import math

import pytest

from zaya_jax.preflight.contact import losses

CPU = {step: 6.0 - 0.1 * step for step in range(1, 31)}


def test_rounding_is_allowed():
  here = {step: loss * 1.002 for step, loss in CPU.items()}
  found = losses.compare(here, CPU)
  assert not found.wrong and 'loss 5.9118 in step 1' in found.said


@pytest.mark.parametrize(
  'changed',
  [
    {1: 5.9 * 1.004},  # Another model before any update.
    {step: CPU[step] * 1.03 for step in range(20, 31)},  # It learns less.
    {30: math.nan},
    {1: math.nan},
  ],
)
def test_what_rounding_cannot_do_is_wrong(changed):
  assert losses.compare(CPU | changed, CPU).wrong


def test_no_common_step_is_wrong():
  assert losses.compare({1: 5.0}, {2: 5.0}).wrong


def test_losses_are_read_by_step(tmp_path):
  rows = [{'step': 1, 'train/loss': 2.5}, {'step': 1, 'val/loss': 9.0}]
  text = '\n'.join(map(json.dumps, rows))
  (tmp_path / 'metrics.jsonl').write_text(text)
  assert losses.read(tmp_path) == {1: 2.5}
