# SPDX-License-Identifier: Apache-2.0
"""Which steps are traced, and what becomes of a trace that cannot be."""

import contextlib

import jax
import pytest

from zaya_jax import config as config_lib
from zaya_jax.metrics import profile


class Report:
  """Keeps notes; files that fail are told, as the reporter does."""

  def __init__(self):
    self.notes = []

  def note(self, line):
    self.notes.append(line)

  @contextlib.contextmanager
  def trying(self, name):
    try:
      yield
    except OSError as error:
      self.notes.append(f'{name}: {error}')


@pytest.fixture
def traces(monkeypatch):
  """Calls of the profiler, which is not run."""
  found = []
  start, stop = found.append, lambda: found.append('stop')
  monkeypatch.setattr(jax.profiler, 'start_trace', start)
  monkeypatch.setattr(jax.profiler, 'stop_trace', stop)
  return found


def _profile(run_dir, flag):
  log = config_lib.LogConfig(profile=flag)
  config = config_lib.Config(run_dir=str(run_dir), log=log)
  return profile.Profile(config, Report())


def _run(made, steps, last):
  """Plays the pauses of a run; returns those before and after a trace."""
  seen = []
  for step in steps:
    if made.ends(step, step == last):
      made.end(())
      seen.append(('end', step))
    if step != last and made.begins(step):
      made.begin(())
      seen.append(('begin', step))
  return seen


@pytest.mark.parametrize(
  'flag, steps, seen',
  [
    ('', range(1, 9), []),
    ('2:1', range(1, 9), [('begin', 1), ('end', 2)]),
    ('4:3', range(1, 9), [('begin', 3), ('end', 6)]),
    ('7:9', range(1, 9), [('begin', 6), ('end', 8)]),  # The run ends.
    ('4:3', range(6, 9), []),  # It resumed behind them.
    ('9:1', range(1, 9), []),
  ],
)
def test_the_steps_that_are_asked_for_are_traced(
  tmp_path, traces, flag, steps, seen
):
  made = _profile(tmp_path, flag)
  assert _run(made, steps, 8) == seen
  assert len(traces) == len(seen)
  assert len(made._report.notes) == len(seen) // 2


def test_a_disk_that_refuses_is_told_and_nothing_is_stopped(tmp_path, traces):
  (tmp_path / 'profile').write_text('in the way')
  made = _profile(tmp_path, '2:1')
  assert _run(made, range(1, 5), 4) == [('begin', 1)]
  assert traces == []
  (note,) = made._report.notes
  assert note.startswith('profile/: ')


@pytest.mark.parametrize(
  'flag', ['1:3', '0:1', '5', '5:0', '5:100', 'a:b', ':']
)
def test_another_form_is_one_sentence(flag):
  with pytest.raises(config_lib.UsageError, match='must be STEP:COUNT'):
    config_lib.LogConfig(profile=flag)
