# SPDX-License-Identifier: Apache-2.0
"""How the numbers of several steps become one row."""

import math
import types

import jax
import pytest

from zaya_jax.metrics import window


def _window(**numbers):
  """A window with one step for each value; names with _ for the slash."""
  made = window.Window()
  for values in zip(*numbers.values(), strict=True):
    names = (name.replace('_', '/', 1) for name in numbers)
    measured = dict(zip(names, values, strict=True))
    made.add(measured, tokens=100, step_s=0.5, data_s=0.25)
  return made


@pytest.mark.parametrize(
  'name, expected',
  [
    ('train_loss', 3.0),
    ('moe_entropy', 3.0),
    ('optim_lr', 2.0),
    ('optim_skipped', 2.0),
    ('optim_bad_steps', 2.0),
    ('moe_load_max', 6.0),
    ('moe_load_min', 1.0),
  ],
)
def test_steps_combine(name, expected):
  combined = _window(**{name: [1.0, 6.0, 2.0]}).combine()
  assert combined[name.replace('_', '/', 1)] == expected


def test_nan_of_a_skipped_step_does_not_count():
  made = _window(train_loss=[1.0, math.nan, 3.0], moe_load_max=[1, math.inf, 2])
  assert made.combine()['train/loss'] == 2.0
  assert made.combine()['moe/load_max'] == 2.0


def test_nothing_but_nan_is_nan():
  assert math.isnan(_window(train_loss=[math.nan]).combine()['train/loss'])


def test_throughput_is_tokens_over_seconds():
  made = _window(train_loss=[1.0])
  made.add({'train/loss': 1.0}, tokens=500, step_s=1.0, data_s=0.0)
  combined = made.combine()
  assert combined['throughput/tokens_per_second'] == 400.0
  assert combined['time/step_s'] == 0.75
  assert combined['time/data_s'] == 0.125


def test_memory_is_that_of_the_fullest_device(monkeypatch):
  full = lambda peak: types.SimpleNamespace(
    memory_stats=lambda: {'peak_bytes_in_use': peak, 'bytes_limit': 9000 - peak}
  )
  monkeypatch.setattr(jax, 'local_devices', lambda: [full(5000), full(7000)])
  assert (window.peak_bytes(), window.limit_bytes()) == (7000, 2000)
  one = window.Window()
  one.add({}, tokens=1, step_s=1.0, data_s=0.0)
  assert one.combine()['memory/peak_bytes'] == 7000


def test_cpu_does_not_say_its_memory():
  one = window.Window()
  one.add({}, tokens=1, step_s=1.0, data_s=0.0)
  assert 'memory/peak_bytes' not in one.combine()
  assert (window.peak_bytes(), window.limit_bytes()) == (0, 0)
