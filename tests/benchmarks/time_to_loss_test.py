# SPDX-License-Identifier: Apache-2.0
"""The arithmetic of the comparison; the programs themselves take minutes."""

import sys

import pytest

from benchmarks import time_to_loss

PEER = [
  {'step': 0, 'val/loss': 4.2, 'time/elapsed_s': 3.0},
  {'step': 250, 'val/loss': 2.1, 'time/elapsed_s': 10.0},
  {'step': 500, 'val/loss': 1.9, 'time/elapsed_s': 20.0},
]
OURS = [
  {'step': 100, 'val/loss': 1.95, 'time/elapsed_s': 4.0},
  {'step': 200, 'val/loss': 1.85, 'time/elapsed_s': 8.0},
]


@pytest.mark.parametrize(
  'target, peer_s, our_s, ratio',
  [
    (2.1, 10.0, 4.0, 0.4),
    (None, 20.0, 8.0, 0.4),
    (1.85, None, 8.0, 0.4),
    (1.0, None, None, None),
  ],
)
def test_ratio_is_of_the_first_evaluations_below(target, peer_s, our_s, ratio):
  result = time_to_loss.compare(PEER, OURS, target)
  assert result['peer']['seconds'] == peer_s
  assert result['zaya_jax']['seconds'] == our_s
  assert result['ratio'] == ratio


def test_both_ways_of_printing_are_read(tmp_path):
  source = (
    'print("number of parameters: 0.80M")\n'
    'print("step 250: train loss 2.0012, val loss 2.1034")\n'
    'print(\'{"step": 500, "train/loss": 1, "val/loss": 1.9}\')'
  )
  run = time_to_loss._watch([sys.executable, '-c', source], tmp_path)
  assert [(e['step'], e['val/loss']) for e in run] == [
    (250, 2.1034),
    (500, 1.9),
  ]
  assert 0 < run[0]['time/elapsed_s'] <= run[1]['time/elapsed_s']


def test_a_failing_peer_is_an_error(tmp_path):
  with pytest.raises(SystemExit, match='ended with code 3'):
    time_to_loss._watch([sys.executable, '-c', 'exit(3)'], tmp_path)


def test_text_of_several_bytes_per_character_is_refused(tmp_path):
  path = tmp_path / 'input.txt'
  path.write_text('naïve', encoding='utf-8')
  with pytest.raises(SystemExit, match='is not ASCII'):
    time_to_loss._describe(path)
