# SPDX-License-Identifier: Apache-2.0
"""A measurement within its time, on machines that are formulas."""

import functools

import jax
import pytest

from tests.support import curves
from zaya_jax.bench.sweep import clock, record, saturation
from zaya_jax.bench.sweep import frame as frame_lib

SIZES = saturation.ladder(2**10, 2**30)


def timed(seconds):
  return clock.Timed(
    low=seconds, seconds=seconds, high=seconds, samples=1, calls=1
  )


class Machine:
  """Takes the seconds of a formula, and remembers what it was asked."""

  def __init__(self, rate):
    self.rate, self.asked = rate, []

  def __call__(self, size, expected_s):
    self.asked.append((size, expected_s))
    return timed(size / self.rate(size))


def curve(machine, frame, case='all-reduce', **options):
  frame.curve(case, 8, SIZES, lambda size: size, machine, **options)
  return record.curve(frame.points, case, 8)


@pytest.mark.parametrize('name', curves.MACHINES)
def test_curve_finds_the_knee(name):
  machine = Machine(curves.MACHINES[name])
  found = curve(machine, frame_lib.Frame(minutes=10, repeats=1))
  knee = saturation.saturated({p.size: p.rate for p in found})
  wanted = curves.brute_force(machine.rate)
  assert knee == pytest.approx(wanted, rel=0.1)
  assert len(machine.asked) == len(set(machine.asked)) == len(found)


def test_neighbours_tell_what_to_expect():
  machine = Machine(lambda size: 2e9)
  curve(machine, frame_lib.Frame(minutes=10, repeats=1))
  first, last, *others = machine.asked
  assert first[1] is None and last[1] is None
  for size, expected_s in others:
    assert expected_s == pytest.approx(size / 2e9)


def test_what_is_known_is_not_measured_again():
  machine = Machine(curves.MACHINES['steps'])
  first = frame_lib.Frame(minutes=10, repeats=1)
  whole = curve(machine, first)
  machine.asked.clear()
  kept = []
  again = frame_lib.Frame(
    minutes=10, repeats=1, known=whole[2:], keep=kept.append
  )
  assert curve(machine, again) == whole
  assert {size for size, _ in machine.asked} == {p.size for p in whole[:2]}
  assert kept == [again]


def test_no_time_is_told():
  machine = Machine(lambda size: 1e9)
  frame = frame_lib.Frame(minutes=-1, repeats=1)
  assert curve(machine, frame) == []
  assert frame.missing == ['all-reduce x 8'] and not machine.asked


def test_time_is_shared_by_curves(monkeypatch):
  time = [0.0]
  budget = functools.partial(clock.Budget, now=lambda: time[0])
  monkeypatch.setattr(clock, 'Budget', budget)

  def machine(size, expected_s):
    time[0] += 10.0
    return timed(1.0)

  frame = frame_lib.Frame(minutes=1, repeats=1)
  frame.expect(2)
  for case in ('a', 'b'):
    frame.curve(case, 2, SIZES, lambda size: size, machine)
  counts = [len(record.curve(frame.points, case, 2)) for case in ('a', 'b')]
  assert counts == [3, 3] and frame.missing == ['a x 2', 'b x 2']


def test_a_single_point_that_would_look_like_a_hang_is_left_out():
  asked = []

  def machine(size, expected_s):
    asked.append(size)
    return timed(2.0)

  frame = frame_lib.Frame(minutes=1000, repeats=1, hang_s=60)
  for case, work in ('first', 2.0), ('long', 31.0), ('right', 20.0):
    frame.single(case, 1, int(work), work, machine)
  # At the best rate, 1 a second, 31 take longer than a third of a minute.
  assert asked == [2, 20] and frame.missing == ['long x 1']


def test_memory_that_does_not_suffice_ends_a_curve():
  def machine(size, expected_s):
    if size == 2**30:
      raise jax.errors.JaxRuntimeError('RESOURCE_EXHAUSTED: out of memory')
    return timed(1.0)

  frame = frame_lib.Frame(minutes=10, repeats=1)
  curve(machine, frame, knee=False)
  assert len(frame.points) == len(SIZES) - 1
  assert frame.notes == [
    'all-reduce of 1,073,741,824 bytes over 8 devices: the memory does not '
    'suffice.'
  ]


def test_another_error_is_not_swallowed():
  def machine(size, expected_s):
    raise jax.errors.JaxRuntimeError('INTERNAL: link down')

  with pytest.raises(jax.errors.JaxRuntimeError, match='link down'):
    curve(machine, frame_lib.Frame(minutes=10, repeats=1))


def test_exact_sizes_are_measured():
  machine = Machine(lambda size: 1e9)
  frame = frame_lib.Frame(minutes=10, repeats=1)
  curve(machine, frame, exact=lambda size: size // 28 * 28)
  assert all(size % 28 == 0 for size, _ in machine.asked)
