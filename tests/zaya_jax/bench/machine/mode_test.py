# SPDX-License-Identifier: Apache-2.0
"""Measurements of the machine from the command line."""

import json

import pytest

from zaya_jax import main
from zaya_jax.bench.machine import clock, collectives, file, record

ARGS = ('--bench.op=collectives', '--bench.case=permute,all-reduce')


@pytest.fixture
def bench(capsys):
  """A function: flags -> exit code, stdout, stderr."""

  def call(*args):
    code = main.main(['zaya_jax', '--mode=bench', *args])
    return code, *capsys.readouterr()

  return call


@pytest.fixture
def formula(monkeypatch):
  """A machine that takes 20 us and a second for 400 GB."""
  asked = []

  def measure(self, name, size, expected_s, repeats):
    asked.append((name, self.size, size))
    seconds = 20e-6 + size / 400e9
    return clock.Timed(
      low=seconds, seconds=seconds, high=seconds, samples=1, calls=1
    )

  monkeypatch.setattr(collectives.Group, 'measure', measure)
  return asked


def test_table_and_file_have_each_curve(bench, formula, tmp_path):
  path = tmp_path / 'machine.json'
  code, out, err = bench(*ARGS, f'--output={path}')
  assert code == 0
  assert out.count('permute') == out.count('all-reduce') == 4
  assert 'all-reduce of 1,024 bytes over 8 devices: 20.0 us' in err
  section = file.read(str(path), chip='cpu').sections['collectives']
  assert not section.missing and section.versions['jax']
  assert {(p.case, p.devices) for p in section.points} == {
    (case, n) for case in ('permute', 'all-reduce') for n in (2, 4, 7, 8)
  }
  curve = record.curve(section.points, 'all-reduce', 8)
  assert curve[0].rate == pytest.approx(1.75 * 1024 / (20e-6 + 1024 / 400e9))


def test_interrupted_command_goes_on(bench, formula, tmp_path, monkeypatch):
  path = tmp_path / 'machine.json'
  begin = collectives.Group.__init__

  def interrupted(self, devices):
    if len(devices) == 4:
      raise KeyboardInterrupt
    begin(self, devices)

  monkeypatch.setattr(collectives.Group, '__init__', interrupted)
  assert bench(*ARGS, f'--output={path}')[0] == 75
  monkeypatch.setattr(collectives.Group, '__init__', begin)
  assert bench(*ARGS, f'--output={path}')[0] == 0
  assert len(formula) == len(set(formula))
  section = file.read(str(path)).sections['collectives']
  assert len(section.points) == len(formula) and not section.missing
  # What is complete is measured anew; so is all, when that is said.
  assert bench(*ARGS, f'--output={path}')[0] == 0
  assert len(formula) == 2 * len(set(formula))


def test_collectives_are_really_run(bench, tmp_path):
  path = tmp_path / 'machine.json'
  code, _, _ = bench(
    *ARGS, '--bench.minutes=0.01', '--bench.max_bytes=4096', f'--output={path}'
  )
  assert code == 0
  points = file.read(str(path)).sections['collectives'].points
  assert points and all(0 < p.low <= p.seconds <= p.high for p in points)


@pytest.mark.parametrize(
  'flag, words',
  [
    ('--bench.case=triad', 'all-reduce, reduce-scatter'),
    ('--bench.op=collectives,experts', 'one kind at a time'),
    ('--bench.max_bytes=1', 'at least 4096'),
    ('--bench.minutes=0', 'at least 0.01'),
    ('--output=found.txt', '.json'),
  ],
)
def test_wrong_flag_is_one_sentence(bench, flag, words):
  code, _, err = bench('--bench.op=collectives', flag)
  assert code == 2
  assert flag in err and words in err and len(err.splitlines()) == 1


def test_file_of_something_else_stays(bench, tmp_path):
  path = tmp_path / 'found.json'
  path.write_text(json.dumps({'rows': []}))
  code, _, err = bench(*ARGS, f'--output={path}')
  assert code == 3 and 'is no machine file' in err
  assert json.loads(path.read_text()) == {'rows': []}


def test_only_collectives_run_in_several_processes(bench):
  several = '--distributed.coordinator=h:1 --distributed.processes=2'
  flags = [*several.split(), '--distributed.process=0']
  code, _, err = bench('--bench.op=memory', *flags)
  assert code == 2 and 'runs in one process' in err
