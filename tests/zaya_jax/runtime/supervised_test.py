# SPDX-License-Identifier: Apache-2.0
"""What a rank knows of its generation, and that an old one saves nothing."""

import io
import json
import os
import sys
import time

import pytest

from zaya_jax.runtime import clock, fence, supervised


@pytest.fixture
def place(tmp_path, monkeypatch):
  """Makes this process a rank of generation 3."""
  made = supervised.Place(
    rank=1, generation=3, run_dir=str(tmp_path), environment={}, skip=(20, 5)
  )
  monkeypatch.setattr(supervised, '_place', made)
  return made


@pytest.mark.parametrize('newest, passes', [(2, True), (3, True), (4, False)])
def test_an_older_generation_is_fenced_off(place, newest, passes):
  fence.raise_to(place.run_dir, newest)
  if passes:
    supervised.check_fence()
    return
  with pytest.raises(fence.FencedError, match='generation 4 goes on') as caught:
    supervised.check_fence()
  assert caught.value.exit_code == 75


def test_batches_are_skipped_at_their_step_only(place):
  assert supervised.batches_to_skip(place.skip[0]) == 5
  assert supervised.batches_to_skip(30) == 0


def test_without_a_supervisor_nothing_is_asked():
  supervised.wait()
  supervised.check_fence()
  assert supervised.place() is None
  assert supervised.batches_to_skip(0) == 0


def test_a_place_is_one_line(place):
  line = supervised.to_line(place)
  assert line.count('\n') == 1
  assert supervised.Place(**json.loads(line)).generation == 3


def test_time_that_a_spare_stands_by_is_nobodys(place, monkeypatch):
  monkeypatch.setenv(supervised.STANDBY, f'0 {os.getppid()}')
  monkeypatch.setattr(sys, 'stdin', io.StringIO(supervised.to_line(place)))
  monkeypatch.setattr(supervised, 'die_with_parent', lambda: None)
  monkeypatch.setattr(supervised.beats, 'join', lambda *_: None)
  monkeypatch.setattr(supervised.beats, 'enter', lambda *_: None)
  monkeypatch.setattr(clock, '_start', time.monotonic() - 1000.0)
  supervised.wait()
  assert supervised.place().generation == 3
  assert clock.elapsed() < 500.0
