# SPDX-License-Identifier: Apache-2.0
"""Measurements of the machine from the command line."""

import dataclasses
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import pytest

from tests.support import fake_srun, xla
from zaya_jax import main
from zaya_jax.bench.machine import collectives, file, memory
from zaya_jax.bench.sweep import clock, record

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


def test_other_cases_of_a_file_stay(bench, formula, tmp_path):
  path = tmp_path / 'machine.json'
  assert bench(*ARGS, f'--output={path}')[0] == 0
  before = file.read(str(path)).sections['collectives'].points
  flags = '--bench.op=collectives --bench.case=permute --noresume'
  assert bench(*flags.split(), f'--output={path}')[0] == 0
  after = file.read(str(path)).sections['collectives'].points
  assert set(after) == set(before)


def test_points_of_another_version_go(bench, formula, tmp_path):
  path = tmp_path / 'machine.json'
  assert bench(*ARGS, f'--output={path}')[0] == 0
  machine = file.read(str(path))
  [old] = machine.sections.values()
  old = dataclasses.replace(old, versions={**old.versions, 'jax': '0.1'})
  sections = {'collectives': old}
  file.write(str(path), dataclasses.replace(machine, sections=sections))
  flags = '--bench.op=collectives --bench.case=permute'
  assert bench(*flags.split(), f'--output={path}')[0] == 0
  [new] = file.read(str(path)).sections.values()
  assert {p.case for p in new.points} == {'permute'}


def test_parts_that_are_finished_are_not_measured_again(
  bench, formula, tmp_path, monkeypatch
):
  path = f'--output={tmp_path}/machine.json'
  assert bench('--bench.op=collectives', path)[0] == 0
  count = len(formula)

  def stopped(frame, config):
    raise KeyboardInterrupt

  monkeypatch.setattr(memory, 'run', stopped)
  assert bench('--bench.op=collectives,memory', path)[0] == 75
  assert len(formula) == count
  assert bench('--bench.op=collectives,memory', '--noresume', path)[0] == 75
  assert len(formula) == 2 * count


def test_all_kinds_are_measured(bench, tmp_path):
  path = tmp_path / 'new' / 'machine.json'
  cases = 'add,128x128x128 bfloat16,to device,fsync,mlp 128 bfloat16'
  code, out, err = bench(
    '--bench.op=machine',
    f'--bench.case={cases}',
    '--bench.max_bytes=4096',
    '--bench.repeats=1',
    f'--output={path}',
  )
  assert code == 0
  sections = file.read(str(path)).sections
  found = {p.case for s in sections.values() for p in s.points}
  assert found == set(cases.split(',')) and len(sections) == 5
  assert 'TFLOP/s' in out and 'fsync of 4,096 bytes by 1 threads' in err


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


@pytest.fixture
def two(tmp_path):
  """A function: flags -> two started processes with two devices each."""
  started = []

  def start(*args):
    environment = {
      'FAKE_TASKS': '2',
      'FAKE_OUT': str(tmp_path),
      'SLURM_JOB_ID': str(random.randrange(10**6)),
      'XLA_FLAGS': ' '.join(
        ['--xla_force_host_platform_device_count=2', *xla.fast_compile()]
      ),
    }
    command = [fake_srun.__file__, sys.executable, '-m', 'zaya_jax.main']
    process = subprocess.Popen(
      [sys.executable, *command, '--mode=bench', *ARGS, *args],
      cwd=pathlib.Path(__file__).parents[4],
      env={**os.environ, **environment},
    )
    started.append(process)
    return process

  yield start
  for process in started:
    if process.poll() is None:
      for path in tmp_path.glob('*.pid'):
        os.kill(int(path.read_text()), signal.SIGKILL)
      process.wait()


@pytest.mark.long  # Two processes that import, meet and measure: 20 s.
def test_two_processes_measure_together(two, tmp_path):
  path = tmp_path / 'machine.json'
  short = '--bench.minutes=0.1 --bench.max_bytes=4096'
  assert two(*short.split(), f'--output={path}').wait() == 0
  machine = file.read(str(path))
  assert (machine.devices, machine.processes) == (4, 2)
  assert {p.devices for p in machine.sections['collectives'].points} == {2, 4}
  assert 'all-reduce' in (tmp_path / '0').read_text()
  assert 'all-reduce' not in (tmp_path / '1').read_text()


@pytest.mark.long  # As long, and until the limit.
def test_process_that_hangs_is_named(two, tmp_path):
  process = two('--distributed.collective_timeout_s=10')
  log = tmp_path / '0'
  told = 'all-reduce of 1,024 bytes'
  while not (log.exists() and told in log.read_text()):
    assert process.poll() is None, log.read_text()
    time.sleep(0.05)
  hung = int((tmp_path / '1.pid').read_text())
  os.kill(hung, signal.SIGSTOP)
  while 'did not end within 5 s' not in log.read_text():
    assert process.poll() is None, log.read_text()
    time.sleep(0.05)
  os.kill(hung, signal.SIGKILL)
  process.wait()
  assert 'in process 0 of 2 (process 1 ' in log.read_text()
