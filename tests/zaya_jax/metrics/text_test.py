# SPDX-License-Identifier: Apache-2.0
"""How numbers and rows read."""

import pytest

from zaya_jax.metrics import text

ROW = {
  'step': 20,
  'train/loss': 2.34567,
  'optim/lr': 1.9e-3,
  'optim/grad_norm': 0.5234,
  'throughput/tokens_per_second': 48_213.0,
  'moe/load_max': 2.4,
  'moe/load_min': 0.31,
}


@pytest.mark.parametrize(
  'number, expected',
  [
    (0, '0'),
    (999, '999'),
    (999.6, '1.00k'),
    (1000, '1.00k'),
    (48_213, '48.2k'),
    (99_960, '100k'),
    (999_600, '1.00M'),
    (8.746e9, '8.75G'),
    (2.5e16, '25.0P'),
  ],
)
def test_short(number, expected):
  assert text.short(number) == expected


@pytest.mark.parametrize(
  'seconds, expected',
  [(0, '00:00'), (59.6, '01:00'), (75, '01:15'), (3725, '1:02:05')],
)
def test_duration(seconds, expected):
  assert text.duration(seconds) == expected


def test_line_has_every_number():
  line = text.step_line(
    {**ROW, 'throughput/mfu': 0.4123, 'optim/skipped': 3.0},
    total=1000,
    eta_s=75,
  )
  assert line == (
    'step    20/1000  loss  2.3457  lr 1.90e-03  grad  0.523   '
    '48.2k tok/s  mfu 41.2%  load 0.31..2.40  eta 01:15  skipped 3'
  )


def test_line_leaves_out_what_is_unknown():
  line = text.step_line(ROW, total=1000, eta_s=75)
  assert not {'mfu', 'skipped'} & set(line.split())


def test_epochs_are_shown_once_data_are_repeated():
  lines = [
    text.step_line({**ROW, 'data/epochs': epochs}, total=1000, eta_s=75)
    for epochs in (0.9, 2.345)
  ]
  assert 'epoch' not in lines[0] and '  epoch 2.3  eta' in lines[1]


def test_lines_of_one_run_are_aligned():
  early = text.step_line({**ROW, 'step': 1}, total=1000, eta_s=75)
  late = text.step_line({**ROW, 'step': 1000}, total=1000, eta_s=0)
  assert early.index('loss') == late.index('loss')
  assert len(early) == len(late)


def test_terminal_is_not_controlled_by_a_model():
  assert text.printable('a\x1b[31m\r\x07é\n\tb') == 'a�[31m��é\n\tb'
