# SPDX-License-Identifier: Apache-2.0
"""Engines in the machine file: what is timed, what is skipped."""

import jax.numpy as jnp
import pytest

from ops import dispatch
from zaya_jax import config as config_lib
from zaya_jax.bench import operations, runner
from zaya_jax.bench.sweep import frame as frame_lib
from zaya_jax.bench.sweep import record

CONFIG = config_lib.Config.parse(['--mode=bench', '--bench.repeats=3'])
BOTH = 'experts xla both balanced-64x32-4x32'


def _frame(*cases):
  return frame_lib.Frame(minutes=1, repeats=3, cases=cases, words='{case}')


def test_a_point_says_what_was_given():
  frame = _frame(BOTH)
  operations.run(frame, CONFIG)
  (point,) = frame.points
  assert (point.case, point.devices) == (BOTH, 1)
  # Three products of 64 tokens, forward once and twice back.
  assert point.work == 3 * 3 * 2 * 64 * 32 * 32
  assert 0 < point.low <= point.seconds <= point.high
  x, expert, *matrices = point.about.split()
  assert (x, expert) == ('bfloat16[64,32]', 'int32[64]')
  assert matrices == ['bfloat16[4,32,64]', 'bfloat16[4,32,32]']


def test_what_cannot_run_is_a_note(monkeypatch):
  def fails(*_):
    raise runner.SkippedError('no library')

  monkeypatch.setattr(runner, 'time_one', fails)
  frame = _frame(BOTH)
  operations.run(frame, CONFIG)
  assert not frame.points
  assert frame.notes == [f'{BOTH}: no library']


def _point(case, seconds, about):
  return record.Point(
    case=case, devices=1, size=1, work=1.0, seconds=seconds, low=seconds,
    high=seconds, samples=1, calls=1, about=about,
  )  # fmt: skip


@pytest.mark.parametrize(
  'triton, xla, engine', [(1e-3, 2e-3, 'triton'), (2e-3, 1e-3, 'xla')]
)
def test_the_file_decides_which_engine_runs(triton, xla, engine):
  shape = 'bfloat16[8,16]'
  rows = operations.rows([
    _point('op triton both 8x16', triton, shape),
    _point('op xla both 8x16', xla, shape),
    _point('op xla forward 8x16', 1e-6, shape),  # Training needs both.
    _point('op xla both', 1e-9, 'a source without shapes'),
  ])  # fmt: skip
  engines = (
    dispatch.Engine('triton', lambda x: 'triton'),
    dispatch.Engine('xla', lambda x: 'xla'),
  )
  x = jnp.zeros((8, 16), jnp.bfloat16)
  with dispatch.measured(rows):
    assert dispatch.select('op', engines, x)(x) == engine
