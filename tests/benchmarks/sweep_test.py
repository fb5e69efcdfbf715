# SPDX-License-Identifier: Apache-2.0
"""Grids: which run is next beside others under way, and workers that share."""

import argparse
import os
import subprocess
import threading
import time

import pytest

from benchmarks import (
  ablations,
  dial,
  equal_time,
  record,
  skills,
  speedrun,
  sweep,
)

CELL = {'name': 'a'}


def row(lr, seed, bpb=2.0):
  return {**CELL, 'lr': lr, 'seed': seed, 'bpb': bpb}


@pytest.mark.parametrize(
  'benchmark', [ablations, dial, equal_time, skills, speedrun]
)
def test_runs_of_a_reader_do_not_go_on_behind_those_on_record(benchmark):
  words = ['--tasks=x', '--runs=x'] if benchmark is skills else []
  output = benchmark._parser().parse_args(words).output
  assert output == record.OWN / f'{benchmark.__name__.split(".")[-1]}.jsonl'
  assert record.RESULTS not in output.parents


def test_seeds_wait_for_the_rates_that_are_being_tried():
  following = lambda rows, busy: sweep.next_of(
    CELL, [1.0, 2.0], [0, 1, 2], rows, busy
  )
  first = following([], [])
  second = following([], [first])
  assert (first, second) == (
    {**CELL, 'lr': 1.0, 'seed': 0}, {**CELL, 'lr': 2.0, 'seed': 0},
  )  # fmt: skip
  assert following([], [first, second]) is None
  assert following([row(1.0, 0)], [second]) is None
  done = [row(1.0, 0, 3.0), row(2.0, 0)]
  third = following(done, [])
  assert third == {**CELL, 'lr': 2.0, 'seed': 1}
  assert following(done, [third]) == {**CELL, 'lr': 2.0, 'seed': 2}
  # What is under way in another cell is another matter.
  other = {'name': 'b', 'lr': 1.0, 'seed': 0}
  assert following([], [other]) == first


@pytest.mark.parametrize(
  'tuned, rate',
  [
    ({1: 2.0, 2: 1.0, 4: 3.0}, None),
    ({1: 1.0, 2: 2.0}, 0.5),
    ({1: 2.0, 2: 1.0}, 4),
    ({16: 1.0, 1: 2.0}, None),
    ({1 / 16: 1.0, 1: 2.0}, None),
  ],
)
def test_rates_go_on_behind_the_edge_as_far_as_is_sensible(tuned, rate):
  assert sweep.beyond(tuned) == rate


def numbers(n):
  """The grid of n runs without an order."""

  def missing(rows, busy):
    begun = [run['n'] for run in (*rows, *busy)]
    left = [i for i in range(n) if i not in begun]
    return {'n': left[0]} if left else None

  return missing


def work(tmp_path, missing, make, jobs, rows=None):
  rows = [] if rows is None else rows
  at = [sweep.Place(os.environ)] * jobs
  output = tmp_path / 'new' / 'rows.jsonl'
  enough = sweep.work(missing, make, rows, output, at, str)
  return enough, rows, sweep.read(output)


def test_runs_are_made_at_once_and_each_once(tmp_path):
  together = threading.Barrier(3)  # Breaks unless three are under way.

  def make(run, place):
    del place
    together.wait(timeout=20)
    return {**run, 'done': True}

  enough, rows, kept = work(tmp_path, numbers(6), make, 3)
  assert enough and kept == rows
  assert sorted(r['n'] for r in rows) == list(range(6))


def test_one_that_fails_stops_no_other_and_is_told_at_the_end(tmp_path):
  def make(run, place):
    del place
    if run['n'] == 1:
      raise SystemExit('one fell over')
    return run

  rows = []
  with pytest.raises(SystemExit, match='one fell over'):
    work(tmp_path, numbers(4), make, 2, rows)
  assert sorted(r['n'] for r in rows) == [0, 2, 3]


def test_an_error_of_the_program_ends_all(tmp_path):
  begun = threading.Barrier(2)

  def make(run, place):
    del place
    if run['n'] < 2:
      begun.wait(timeout=20)  # Both are under way when one falls.
    if run['n'] == 1:
      raise ZeroDivisionError
    time.sleep(0.05)
    return run

  rows = []
  with pytest.raises(ZeroDivisionError):
    work(tmp_path, numbers(50), make, 2, rows)
  assert rows[0] == {'n': 0} and len(rows) < 49


def test_nothing_is_begun_when_the_time_is_over(tmp_path):
  make = lambda run, place: None if run['n'] == 2 else run
  enough, rows, _ = work(tmp_path, numbers(9), make, 1)
  assert not enough and [r['n'] for r in rows] == [0, 1]


def test_data_are_prepared_once_by_runs_that_begin_together(
  tmp_path, monkeypatch
):
  made = []

  def run(command, **how):
    del how
    made.append(command)
    (tmp_path / 'data').mkdir()  # Fails for a second one.
    (tmp_path / 'data' / 'manifest.json').write_text('{}')
    return subprocess.CompletedProcess(command, 0, '')

  monkeypatch.setattr(subprocess, 'run', run)
  flags = ['--dial=1', '--data.input=stdlib', f'--data.dir={tmp_path}/data']
  ends = sweep.work(
    numbers(4), lambda run, place: sweep.prepare(flags) or run, [],
    tmp_path / 'rows.jsonl', [sweep.Place(os.environ)] * 4, str,
  )  # fmt: skip
  assert ends and len(made) == 1
  assert made[0][1:] == ['-m', 'zaya_jax.main', *flags, '--mode=prepare']


def test_text_that_cannot_be_prepared_is_told(tmp_path):
  flags = ['--dial=1', f'--data.dir={tmp_path}/data']
  with pytest.raises(SystemExit, match='no/such/text'):
    sweep.prepare([*flags, '--data.input=no/such/text'])


def test_each_place_has_its_gpu_or_its_share_of_the_cores(tmp_path):
  parser = argparse.ArgumentParser()
  sweep.add_flags(parser)
  places = sweep.places(parser.parse_args(['--devices=0,3']), 2)
  told = [p.env['CUDA_VISIBLE_DEVICES'] for p in places]
  assert told == ['0', '3', '0', '3']
  memory = {p.env['XLA_PYTHON_CLIENT_MEM_FRACTION'] for p in places}
  assert memory == {'0.40'} and not any(p.cores for p in places)
  have = os.sched_getaffinity(0)
  shares = sweep.places(parser.parse_args([]), 2)
  assert frozenset().union(*(p.cores for p in shares)) == have
  found = []
  make = lambda run, place: found.append(os.sched_getaffinity(0)) or run
  sweep.work(numbers(2), make, [], tmp_path / 'x.jsonl', shares[:1], str)
  assert found == [shares[0].cores] * 2
  assert os.sched_getaffinity(0) == have
