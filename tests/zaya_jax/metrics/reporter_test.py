# SPDX-License-Identifier: Apache-2.0
"""What a run leaves behind and shows, and when it reads the device."""

import dataclasses
import json
import os
import pty
import resource
import subprocess
import sys

import numpy as np
import pytest

from tests.support import disk
from zaya_jax import config, metrics
from zaya_jax.metrics import console, recorder

# What a row of training steps holds.
KEYS = {
  'step',
  'tokens',
  'train/loss',
  'optim/lr',
  'optim/grad_norm',
  'optim/skipped',
  'moe/load_max',
  'moe/load_min',
  'moe/entropy',
  'moe/skip',
  'throughput/tokens_per_second',
  'time/step_s',
  'time/data_s',
  'data/epochs',
  'time/elapsed_s',
  'time/unix_s',
}


@dataclasses.dataclass
class Scalar:
  """An array on a device: not ready, and it remembers being read."""

  value: float
  reads: int = 0

  def is_ready(self):
    return False

  def __array__(self, dtype=None, copy=None):
    self.reads += 1
    return np.asarray(self.value, dtype)


def _measured(loss=2.0):
  return {
    'train/loss': Scalar(loss),
    'optim/lr': Scalar(1e-3),
    'optim/grad_norm': Scalar(0.5),
    'optim/skipped': Scalar(0.0),
    'moe/load_max': Scalar(1.5),
    'moe/load_min': Scalar(0.5),
    'moe/entropy': Scalar(0.9),
    'moe/skip': Scalar(0.0),
  }


def _reporter(
  folder, *, kind='cpu', num_steps=40, tensorboard=False, **changes
):
  log = config.LogConfig(
    **{'every': 10, 'tensorboard': tensorboard, **changes.pop('log', {})}
  )
  return metrics.Reporter(
    config.Config(num_steps=num_steps, log=log, prompt='def f('),
    run_dir=str(folder),
    num_params=1000,
    active_params=100,
    flops_per_token=1e9,
    epochs=lambda tokens: tokens / 640,
    device_kind=kind,
    num_devices=2,
    **changes,
  )


def _push(report, first, last):
  for step in range(first, last + 1):
    report.push(step, _measured(loss=10.0 / step), tokens=64, data_s=0.01)


def _rows(folder):
  lines = (folder / 'metrics.jsonl').read_text().splitlines()
  return [json.loads(line) for line in lines]


def test_values_are_read_one_step_late_and_once(tmp_path):
  with _reporter(tmp_path) as report:
    first, second = _measured(), _measured()
    report.push(1, first, tokens=64, data_s=0.0)
    assert not any(x.reads for x in first.values())
    report.push(2, second, tokens=64, data_s=0.0)
    assert all(x.reads == 1 for x in first.values())
    assert not any(x.reads for x in second.values())
  assert all(x.reads == 1 for x in (*first.values(), *second.values()))


def test_rows_of_the_first_step_of_every_tenth_and_of_the_last(tmp_path):
  with _reporter(tmp_path, num_steps=25) as report:
    _push(report, 1, 25)
  rows = _rows(tmp_path)
  assert [row['step'] for row in rows] == [1, 10, 20, 25]
  assert [row['tokens'] for row in rows] == [64, 640, 1280, 1600]
  assert [row['data/epochs'] for row in rows] == [0.1, 1.0, 2.0, 2.5]
  assert all(set(row) == KEYS for row in rows)
  losses = [10.0 / step for step in range(2, 11)]
  assert rows[1]['train/loss'] == pytest.approx(np.mean(losses))


def test_stopped_run_writes_no_row_that_a_straight_run_would_not(tmp_path):
  with _reporter(tmp_path) as report:
    _push(report, 1, 13)
  assert [row['step'] for row in _rows(tmp_path)] == [1, 10]


def test_resumed_run_has_the_rows_of_a_straight_one(tmp_path):
  with _reporter(tmp_path / 'straight') as report:
    _push(report, 1, 40)
  with _reporter(tmp_path / 'resumed') as report:
    _push(report, 1, 33)  # Killed after step 33, saved at step 12.
  with _reporter(
    tmp_path / 'resumed', start_step=12, start_tokens=12 * 64
  ) as report:
    _push(report, 13, 40)
  straight, resumed = _rows(tmp_path / 'straight'), _rows(tmp_path / 'resumed')
  for key in ('step', 'tokens'):
    assert [row[key] for row in resumed] == [row[key] for row in straight]


def test_rows_are_written_before_a_checkpoint(tmp_path):
  with _reporter(tmp_path) as report:
    _push(report, 1, 10)
    assert [row['step'] for row in _rows(tmp_path)] == [1]
    with report.aside('saving'):
      assert [row['step'] for row in _rows(tmp_path)] == [1, 10]


def test_time_aside_is_not_training_time(tmp_path, monkeypatch):
  now = [0.0]
  monkeypatch.setattr('time.monotonic', lambda: now[0])
  with _reporter(tmp_path) as report:
    for step in range(1, 21):
      now[0] += 1.0
      report.push(step, _measured(), tokens=64, data_s=0.0)
      if step == 10:
        with report.aside('evaluating'):
          now[0] += 100.0
    with report.compiling('another step'):
      now[0] += 100.0
  # Reading step 1 waits until step 2 is pushed: two seconds.
  assert max(row['time/step_s'] for row in _rows(tmp_path)) == 2.0


def test_step_that_is_done_when_pushed_ends_there(tmp_path, monkeypatch):
  now = [0.0]
  monkeypatch.setattr('time.monotonic', lambda: now[0])
  monkeypatch.setattr(Scalar, 'is_ready', lambda self: True)
  with _reporter(tmp_path, num_steps=20) as report:
    for step in range(1, 21):
      now[0] += 1.0 if step < 11 else 3.0
      report.push(step, _measured(), tokens=64, data_s=0.0)
    now[0] += 50.0
  assert [row['time/step_s'] for row in _rows(tmp_path)] == [1.0, 1.0, 3.0]


def test_time_does_not_run_backwards_when_a_step_is_done_at_once(
  tmp_path, monkeypatch
):
  ticks = iter(range(1000))
  monkeypatch.setattr('time.monotonic', lambda: float(next(ticks)))
  with _reporter(tmp_path, log={'every': 1}) as report:
    for step in range(1, 7):
      # The first of two is awaited when the second is pushed, done already.
      done = step % 2 == 0
      monkeypatch.setattr(Scalar, 'is_ready', lambda self, done=done: done)
      report.push(step, _measured(), tokens=64, data_s=0.0)
  rows = _rows(tmp_path)
  assert [row['step'] for row in rows] == [1, 2, 3, 4, 5, 6]
  assert all(row['time/step_s'] > 0 for row in rows)
  assert all(row['throughput/tokens_per_second'] > 0 for row in rows)


def test_evaluation_stands_on_its_own_line_alone(tmp_path):
  with _reporter(tmp_path, num_steps=20) as report:
    _push(report, 1, 10)
    report.evaluation(10, {'val/loss': 1.5, 'val/bpb': 2.25})
    _push(report, 11, 20)
  lines = (tmp_path / 'log.txt').read_text().splitlines()
  assert [line.split()[0] for line in lines if '2.250' in line] == ['eval']


def test_training_loss_is_that_of_the_log(tmp_path):
  with _reporter(tmp_path) as report:
    assert np.isnan(report.train_loss)
    _push(report, 1, 10)
    report.flush()
    row = _rows(tmp_path)[-1]
    assert row['step'] == 10 and report.train_loss == row['train/loss']
    _push(report, 11, 12)
    report.flush()
    assert report.train_loss == pytest.approx((10 / 11 + 10 / 12) / 2)


def test_mfu_where_the_peak_is_known(tmp_path):
  with _reporter(tmp_path, kind='AMD Instinct MI300X') as report:
    _push(report, 1, 2)
  (row,) = _rows(tmp_path)
  expected = row['throughput/tokens_per_second'] * 1e9 / (2 * 1307.4e12)
  assert row['throughput/mfu'] == pytest.approx(expected)
  assert 'mfu' in (tmp_path / 'log.txt').read_text()


def test_peak_may_be_given(tmp_path):
  with _reporter(tmp_path, log={'peak_tflops': 2.0}) as report:
    _push(report, 1, 2)
  (row,) = _rows(tmp_path)
  expected = row['throughput/tokens_per_second'] * 1e9 / (2 * 2e12)
  assert row['throughput/mfu'] == pytest.approx(expected)


def test_skipped_step_leaves_valid_json_and_is_counted(tmp_path):
  with _reporter(tmp_path) as report:
    bad = {**_measured(float('nan')), 'optim/skipped': Scalar(1.0)}
    report.push(1, bad, tokens=64, data_s=0.0)
  (row,) = _rows(tmp_path)
  assert row['train/loss'] is None
  assert row['optim/skipped'] == 1.0
  assert 'skipped 1' in (tmp_path / 'log.txt').read_text()


def test_evaluation_save_and_sample_are_recorded(tmp_path):
  with _reporter(tmp_path) as report:
    _push(report, 1, 2)
    report.evaluation(2, {'val/loss': 1.5, 'val/bpb': 2.25})
    report.sample(2, 'def f(', 'x):\n  return\x1b[0m')
    report.paused(2, 0.5)
  _, evaluated, saved = _rows(tmp_path)
  assert (evaluated['step'], evaluated['tokens']) == (2, 128)
  assert (evaluated['val/loss'], evaluated['val/bpb']) == (1.5, 2.25)
  assert saved['time/checkpoint_s'] == 0.5
  sample = tmp_path / 'samples' / 'step_000002.txt'
  assert sample.read_text() == 'def f(x):\n  return\x1b[0m'
  log = (tmp_path / 'log.txt').read_text()
  assert '  | def f(x):\n  |   return\ufffd[0m\n' in log


def _finish(folder, capsys, last, checkpoint, **changes):
  with _reporter(folder, num_steps=2, **changes) as report:
    for step in range(1, last + 1):
      _push(report, step, step)
      bpb = {1: 2.25, 2: 2.5}[step]
      zlib = {'val/zlib_bpb': 2.0}
      report.evaluation(step, {'val/loss': 1.5, 'val/bpb': bpb, **zlib})
    report.finish(checkpoint=checkpoint)
  return capsys.readouterr().out


def test_summary_tells_the_best_and_what_to_type(tmp_path, capsys):
  shown = _finish(tmp_path, capsys, 2, 'run/checkpoints/2', tensorboard=True)
  assert 'done: 2 of 2 steps, 128 tokens' in shown
  assert '2.250 bits per byte at step 1 (zlib 2.000)' in shown
  assert 'run/checkpoints/2' in shown
  assert f"--mode=generate --run_dir={tmp_path} '--prompt=def f('" in shown
  assert f'--flagfile={tmp_path}/config.flags --num_steps=4' in shown
  assert f'--logdir={tmp_path}/tensorboard' in shown


def test_summary_of_a_stopped_run_says_how_to_resume(tmp_path, capsys):
  shown = _finish(tmp_path, capsys, 1, 'run/checkpoints/1')
  assert 'stopped: 1 of 2 steps' in shown
  assert f'--flagfile={tmp_path}/config.flags\n' in shown


def test_summary_without_a_checkpoint_names_no_command(tmp_path, capsys):
  assert 'next:' not in _finish(tmp_path, capsys, 1, None)


def test_best_of_before_the_resume_is_remembered(tmp_path, capsys):
  _finish(tmp_path, capsys, 1, None)
  with _reporter(tmp_path, num_steps=2, start_step=1) as report:
    _push(report, 2, 2)
    report.evaluation(2, {'val/loss': 1.5, 'val/bpb': 2.4})
    report.finish(checkpoint=None)
  shown = capsys.readouterr().out
  assert '2.250 bits per byte at step 1' in shown
  assert 'best so far' not in shown


def test_best_after_a_resume_is_not_the_newest(tmp_path, capsys):
  _finish(tmp_path, capsys, 2, None)  # 2.25, then 2.5.
  with _reporter(tmp_path, num_steps=3, start_step=2) as report:
    _push(report, 3, 3)
    report.evaluation(3, {'val/loss': 1.5, 'val/bpb': 2.4})
    report.finish(checkpoint=None)
  shown = capsys.readouterr().out
  assert 'best so far' not in shown
  assert '2.250 bits per byte at step 1' in shown


def test_tie_is_not_better(tmp_path, capsys):
  with _reporter(tmp_path, num_steps=2) as report:
    for step in (1, 2):
      _push(report, step, step)
      report.evaluation(step, {'val/loss': 1.5, 'val/bpb': 2.25})
    report.finish(checkpoint=None)
  shown = capsys.readouterr().out
  assert shown.count('best so far') == 1
  assert '2.250 bits per byte at step 1' in shown


@pytest.fixture
def clock(monkeypatch):
  """Half a second passes whenever somebody looks; starts at the index 0."""
  now = [0.0]

  def look():
    now[0] += 0.5
    return now[0]

  monkeypatch.setattr(recorder.time, 'monotonic', look)
  monkeypatch.setattr(recorder.time, 'time', lambda: 1_700_000_000 + look())
  return now


def test_full_disk_costs_lines_and_no_run(tmp_path, capsys, clock):
  def push(first, last):
    for step in range(first, last + 1):
      experts = {
        'moe/load': Scalar([[1.0] * 16]),
        'moe/bias': Scalar([[0.0] * 16]),
      }
      report.push(step, {**_measured(), **experts}, tokens=64, data_s=0.01)
    report.flush()

  with _reporter(tmp_path, tensorboard=True, log={'every': 1}) as report:
    push(1, 3)
    with disk.full(2000):
      push(4, 30)
      report.evaluation(30, {'val/loss': 1.5, 'val/bpb': 2.25})
      report.sample(30, 'def f(', 'x' * 3000)
      with report.trying('incidents.jsonl'):
        raise OSError(28, 'No space left on device')
    clock[0] += 60
    with report.trying('incidents.jsonl'):
      pass
    push(31, 40)
    report.sample(40, 'def f(', 'x):')
    report.finish(checkpoint=None)

  shown = capsys.readouterr().out.splitlines()
  told = [line.split()[0] for line in shown if ' is paused (' in line]
  again = [line.split()[0] for line in shown if line.endswith(' written again')]
  kept = ['metrics.jsonl', 'experts.jsonl', 'log.txt']
  others = ['tensorboard/', 'samples/', 'incidents.jsonl']
  # Of the limit here a new file of TensorBoard has its own.
  assert {*told} == {*again} == {*kept, *others}
  assert all(told.count(n) == again.count(n) == 1 for n in kept + others[1:])
  for name in kept:  # No line is torn, and later ones are there again.
    assert (tmp_path / name).read_text().endswith('\n')
  for name in ('metrics.jsonl', 'experts.jsonl'):
    rows = [json.loads(x) for x in (tmp_path / name).read_text().splitlines()]
    steps = [row['step'] for row in rows]
    assert steps[:3] == [1, 2, 3] and steps[-10:] == [*range(31, 41)]
    assert len(steps) < 40
  assert {*(tmp_path / 'log.txt').read_text().splitlines()} < {*shown}
  assert os.listdir(tmp_path / 'samples') == ['step_000040.txt']
  # Behind a torn event nobody could read it.
  torn, *_, whole = sorted((tmp_path / 'tensorboard').iterdir())
  assert b'def f(x):' not in torn.read_bytes()
  assert b'def f(x):' in whole.read_bytes()


def test_disk_that_is_full_at_the_start_costs_no_run(tmp_path, capsys, clock):
  run = tmp_path / 'run'
  with _reporter(run, log={'every': 1}) as report:
    for step in (1, 2, 3, 4):
      _push(report, step, step)
  with disk.full(0):  # It goes on from step 2, and cannot drop the later rows.
    with _reporter(run, log={'every': 1}, start_step=2) as report:
      _push(report, 3, 3)
      _push(report, 4, 4)
      report.flush()
      assert _steps_of(run) == [1, 2, 3, 4]
      clock[0] += 60
      with disk.full(resource.RLIM_INFINITY):
        _push(report, 5, 5)
        report.flush()
        assert _steps_of(run) == [1, 2, 5]
  shown = capsys.readouterr().out
  assert shown.count('metrics.jsonl is paused') == 1
  assert shown.count('metrics.jsonl is written again') == 1


def _steps_of(run):
  lines = (run / 'metrics.jsonl').read_text().splitlines()
  return [json.loads(line)['step'] for line in lines]


def test_file_that_fails_now_and_then_is_told_once(tmp_path, capsys, clock):
  with _reporter(tmp_path) as report:
    for number in range(60):  # Two looks at the clock, each.
      with report.trying('metrics.jsonl'):
        if number % 3 == 0:
          raise OSError(28, 'No space left on device')
  shown = capsys.readouterr().out
  assert shown.count('metrics.jsonl is paused') == 1
  assert 'written again' not in shown


def test_stdout_on_a_full_disk_is_written_again_later(tmp_path):
  with open(tmp_path / 'out', 'w') as stream:
    with console.Console(tmp_path / 'log.txt', stream) as shown:
      shown.line('first')
      with disk.full(10):
        shown.line('second')
      shown.line('third')
  assert (tmp_path / 'out').read_text().endswith('third\n')
  assert (tmp_path / 'log.txt').read_text().startswith('first\nthird\n')


def test_log_has_the_lines_of_the_pipe(tmp_path, capsys):
  with _reporter(tmp_path) as report:
    report.note('a note')
    with report.compiling('train step'):
      pass
    _push(report, 1, 11)
  shown = capsys.readouterr().out
  assert shown == (tmp_path / 'log.txt').read_text()
  assert '\x1b' not in shown
  assert 'compiling train step ...\ncompiled train step in 0.0 s\n' in shown
  assert shown.count('step  10/40') == 1


def test_files_are_closed_when_training_fails(tmp_path):
  with (
    pytest.raises(RuntimeError, match='step 3 failed'),
    _reporter(tmp_path) as report,
  ):
    _push(report, 1, 2)
    raise RuntimeError('step 3 failed')
  assert [row['step'] for row in _rows(tmp_path)] == [1]


def test_tensorboard_gets_the_same_names(tmp_path):
  with _reporter(tmp_path, tensorboard=True) as report:
    _push(report, 1, 2)
    report.evaluation(2, {'val/loss': float('nan'), 'val/bpb': 2.25})
    report.sample(2, 'def f(', 'x):')
  (events,) = (tmp_path / 'tensorboard').iterdir()
  written = events.read_bytes()
  for name in KEYS - {'step', 'tokens', 'time/elapsed_s', 'time/unix_s'} | {
    'val/bpb'
  }:
    assert name.encode() in written
  assert b'val/loss' not in written  # NaN is no point of a curve.
  assert b'def f(x):' in written


RUN = """
import sys
from zaya_jax import config, metrics
from zaya_jax.metrics import console
settings = config.Config(num_steps=3, log=config.LogConfig(tensorboard=False))
with metrics.Reporter(
  settings, run_dir=sys.argv[1], num_params=1, active_params=1,
  flops_per_token=1.0, epochs=float, device_kind='cpu', num_devices=1,
) as report:
  for step in (1, 2, 3):
    report.push(step, {}, tokens=1, data_s=0.0)
    if step == 2:
      with report.aside('evaluating'):
        report.evaluation(2, {'val/loss': 1.5})
  report.finish(checkpoint=None)
"""


def _on_terminal(folder, **environment):
  """Runs RUN on a terminal of its own; returns what it shows."""
  ours, theirs = pty.openpty()
  env = {k: v for k, v in os.environ.items() if k != 'NO_COLOR'}
  process = subprocess.Popen(
    [sys.executable, '-c', RUN, str(folder)],
    stdout=theirs,
    env={**env, 'TERM': 'xterm', **environment},
  )
  os.close(theirs)
  shown = b''
  # A terminal whose other end is closed gives an error, not an empty read.
  try:
    while chunk := os.read(ours, 65536):
      shown += chunk
  except OSError:
    pass
  os.close(ours)
  assert process.wait() == 0
  return shown.decode()


def test_terminal_shows_a_bar_and_colour(tmp_path):
  shown = _on_terminal(tmp_path)
  assert 'training' in shown
  assert 'evaluating' in shown
  assert '3/3' in shown
  assert '\x1b[36m' in shown  # The line of an evaluation is cyan.


def test_no_color_is_honoured(tmp_path):
  shown = _on_terminal(tmp_path, NO_COLOR='1')
  assert '3/3' in shown
  assert '\x1b[36m' not in shown


def test_pipe_gets_no_escapes_even_with_a_terminal_around(tmp_path):
  done = subprocess.run(
    [sys.executable, '-c', RUN, str(tmp_path)],
    capture_output=True,
    text=True,
    check=True,
    env={**os.environ, 'FORCE_COLOR': '1', 'TERM': 'xterm'},
  )
  assert '\x1b' not in done.stdout
  assert 'done: 3 of 3 steps' in done.stdout


def test_run_outlives_the_reader_of_its_output(tmp_path):
  process = subprocess.Popen(
    [sys.executable, '-c', RUN, str(tmp_path)],
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
  )
  process.stdout.close()
  _, complaints = process.communicate()
  assert (process.returncode, complaints) == (0, b'')
  assert 'done: 3 of 3 steps' in (tmp_path / 'log.txt').read_text()


def test_run_outlives_the_disk_of_its_output(tmp_path):
  with open('/dev/full', 'w') as full:
    done = subprocess.run(
      [sys.executable, '-c', RUN, str(tmp_path)],
      stdout=full,
      stderr=subprocess.PIPE,
      check=False,
    )
  assert (done.returncode, done.stderr) == (0, b'')
  assert 'done: 3 of 3 steps' in (tmp_path / 'log.txt').read_text()


def test_log_of_another_process_makes_its_folder(tmp_path):
  path = tmp_path / 'logs' / 'process_00001.log'
  with console.Console(path) as shown:
    shown.line('a line')
  assert path.read_text() == 'a line\n'
